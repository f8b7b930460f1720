//! Requests about files.

use crate::answer::{Answer, Answered, Failure};
use crate::app::Asked;
use crate::stream;
use branchbox_api::{FileRequest, FileStat, Issues, parse_mode};
use branchbox_model::Code;
use branchbox_node::{LIST_DEPTH_MAX, LIST_ENTRIES_MAX, ListFiles, Node};
use serde_json::json;

/// Mode of a new file when the request does not say.
const MODE: u32 = 0o644;
/// Longest pattern.
const GLOB_BYTES_MAX: usize = 1024;

fn path(asked: &Asked) -> Result<String, Failure> {
    let path = asked.query.text("path").ok_or_else(|| Issues::one("path", "is required"))?;
    FileRequest::check_path(&path)?;
    Ok(path)
}

pub(crate) async fn read(node: &Node, id: &str, asked: &Asked) -> Answered {
    let reader = node.read_file(id, path(asked)?).await?;
    Ok(Answer::File { size: reader.size, body: stream::file(reader) })
}

pub(crate) async fn write(node: &Node, id: &str, asked: &Asked) -> Answered {
    let path = path(asked)?;
    let mode = match asked.query.text("mode") {
        None => MODE,
        Some(text) => parse_mode(&text).ok_or_else(|| Issues::one("mode", "must be an octal number such as `755`"))?,
    };
    node.write_file(id, &path, mode, &asked.body).await?;
    Answer::ok(&json!({ "path": path, "size": asked.body.len(), "mode": format!("{mode:o}") }))
}

pub(crate) async fn list(node: &Node, id: &str, asked: Asked) -> Answered {
    let path = match asked.query.text("path") {
        None => "/workspace".to_owned(),
        Some(_) => path(&asked)?,
    };
    let mut query = asked.query;
    let number = |number: Option<u64>, default| number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default);
    let depth = number(query.number("depth", 1..=u64::from(LIST_DEPTH_MAX)), 1);
    let limit = number(query.number("limit", 1..=u64::from(LIST_ENTRIES_MAX)), LIST_ENTRIES_MAX);
    let (hidden, glob) = (query.truth("hidden"), query.text("glob"));
    query.finish()?;
    if glob.as_ref().is_some_and(|glob| glob.len() > GLOB_BYTES_MAX) {
        return Err(Issues::one("glob", format!("at most {GLOB_BYTES_MAX} bytes")).into());
    }
    Answer::ok(&node.list_files(id, ListFiles { path, depth, hidden, glob, limit }).await?)
}

pub(crate) async fn stat(node: &Node, id: &str, asked: &Asked) -> Answered {
    match node.stat_file(id, path(asked)?).await? {
        Some(entry) => Answer::ok(&entry),
        None => Answer::ok(&FileStat { exists: false }),
    }
}

pub(crate) async fn change(node: &Node, id: &str, verb: &str, asked: &Asked) -> Answered {
    let unknown = || Failure::new(Code::RouteNotFound, "no such file verb", "compare the path with the documentation");
    let request = FileRequest::parse(verb, &asked.body).ok_or_else(unknown)??;
    match node.change_file(id, request).await? {
        Some(removed) => Answer::ok(&removed),
        None => Answer::ok(&json!({})),
    }
}

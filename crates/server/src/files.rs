//! Requests about files.

use crate::answer::{Answer, Answered, Failure};
use crate::app::Asked;
use crate::query::Query;
use crate::routes::End;
use crate::stream;
use branchbox_api::{
    ArchiveUploadRequest, Empty, FileRequest, FileStat, FileWritten, Issues, UploadRequest, parse_mode,
};
use branchbox_model::{Code, User};
use branchbox_node::{LIST_DEPTH_MAX, LIST_ENTRIES_MAX, ListFiles, Node, Pack};

/// Mode of a new file when the request does not say.
const MODE: u32 = 0o644;
/// Longest pattern.
pub(crate) const GLOB_BYTES_MAX: usize = 1024;

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
    let size = asked.body.len();
    Answer::ok(&FileWritten { path, size, mode: format!("{mode:o}") })
}

pub(crate) async fn list(node: &Node, id: &str, asked: Asked) -> Answered {
    let path = match asked.query.text("path") {
        None => "/workspace".to_owned(),
        Some(_) => path(&asked)?,
    };
    let mut query = asked.query;
    let number = |number: Option<u64>, default| number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default);
    let (hidden, glob) = (query.truth("hidden"), query.text("glob"));
    // A pattern that names folders looks into them.
    let depth = if glob.as_ref().is_some_and(|glob| glob.contains('/')) { LIST_DEPTH_MAX } else { 1 };
    let depth = number(query.number("depth", 1..=u64::from(LIST_DEPTH_MAX)), depth);
    let limit = number(query.number("limit", 1..=u64::from(LIST_ENTRIES_MAX)), LIST_ENTRIES_MAX);
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
        None => Answer::ok(&Empty {}),
    }
}

pub(crate) async fn begin_upload(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::created(&node.begin_upload(id, UploadRequest::parse(&asked.body)?).await?)
}

fn offset(mut query: Query) -> Result<u64, Failure> {
    let offset = query.number("offset", 0..=u64::MAX);
    query.finish()?;
    offset.ok_or_else(|| Issues::one("offset", "is required").into())
}

pub(crate) async fn upload_piece(node: &Node, id: &str, upload: &str, asked: Asked) -> Answered {
    node.upload_piece(id, upload, offset(asked.query)?, &asked.body).await?;
    Answer::ok(&Empty {})
}

pub(crate) async fn end_upload(node: &Node, id: &str, upload: &str, how: End, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    match how {
        End::Commit => node.commit_upload(id, upload).await?,
        End::Abort => node.abort_upload(id, upload).await?,
    }
    Answer::ok(&Empty {})
}

fn user(query: &Query) -> Result<User, Failure> {
    match query.text("user").as_deref() {
        None | Some("sandbox") => Ok(User::Sandbox),
        Some("root") => Ok(User::Root),
        Some(_) => Err(Issues::one("user", "must be `sandbox` or `root`").into()),
    }
}

pub(crate) async fn pack(node: &Node, id: &str, asked: Asked) -> Answered {
    let (path, user) = (path(&asked)?, user(&asked.query)?);
    let mut query = asked.query;
    let (gzip, excludes) = (query.truth("gzip"), query.all("exclude"));
    query.finish()?;
    for exclude in &excludes {
        FileRequest::check_path(&format!("/{}", exclude.trim_start_matches('/')))?;
    }
    let packing = node.pack(id, Pack { path, gzip, user, excludes, names: Vec::new() }).await?;
    Ok(Answer::Bytes { body: stream::packing(packing) })
}

pub(crate) async fn unpack(node: &Node, id: &str, asked: &Asked) -> Answered {
    node.unpack(id, &path(asked)?, user(&asked.query)?, asked.body.clone()).await?;
    Answer::ok(&Empty {})
}

pub(crate) async fn begin_archive(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::created(&node.begin_archive(id, ArchiveUploadRequest::parse(&asked.body)?).await?)
}

pub(crate) async fn archive_piece(node: &Node, id: &str, upload: &str, asked: Asked) -> Answered {
    node.archive_piece(id, upload, offset(asked.query)?, &asked.body).await?;
    Answer::ok(&Empty {})
}

pub(crate) async fn end_archive(node: &Node, id: &str, upload: &str, how: End, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    match how {
        End::Commit => node.commit_archive(id, upload).await?,
        End::Abort => node.abort_archive(id, upload).await?,
    }
    Answer::ok(&Empty {})
}

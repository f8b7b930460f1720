//! What a word of the command line means: an id, a name, or what an id begins with.

use crate::connect::refused;
use crate::fault::Fault;
use branchbox_api::{PAGE_MAX, SandboxInfo, SnapshotInfo};
use branchbox_client::{Client, SandboxQuery, SnapshotQuery};
use branchbox_model::{SandboxId, SandboxState, SnapshotId};

/// Shortest beginning of an id that is looked up.
const PREFIX_CHARS_MIN: usize = 6;
/// Most pages that are read: a list longer than this needs a filter.
const PAGES_MAX: usize = 1000;
/// Most candidates that are named when a word is not unique.
const NAMED_MAX: usize = 5;

/// Which sandboxes.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// With this name.
    pub name: Option<String>,
    /// With all of these labels.
    pub labels: Vec<(String, String)>,
    /// In this state.
    pub state: Option<SandboxState>,
    /// Those that ended as well.
    pub ended_too: bool,
}

/// Every sandbox of that kind.
///
/// # Errors
/// What the node refused.
pub async fn sandboxes(client: &Client, which: &Which) -> Result<Vec<SandboxInfo>, Fault> {
    let mut query = SandboxQuery {
        name: which.name.clone(),
        labels: which.labels.clone(),
        states: which.state.into_iter().collect(),
        limit: Some(PAGE_MAX),
        include_stopped: which.ended_too,
        ..SandboxQuery::default()
    };
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = client.list(&query).await.map_err(|error| refused("cannot list sandboxes", error))?;
        found.extend(page.data);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(found),
        }
    }
    Err(Fault::failed("the list of sandboxes does not end"))
}

/// Every snapshot, or those of one sandbox.
///
/// # Errors
/// What the node refused.
pub async fn snapshots(client: &Client, of: Option<&str>) -> Result<Vec<SnapshotInfo>, Fault> {
    let mut query = SnapshotQuery { sandbox: of.map(str::to_owned), limit: Some(PAGE_MAX), ..SnapshotQuery::default() };
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = client.snapshots(&query).await.map_err(|error| refused("cannot list snapshots", error))?;
        found.extend(page.data);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(found),
        }
    }
    Err(Fault::failed("the list of snapshots does not end"))
}

/// The id of the sandbox that is meant.
///
/// # Errors
/// When none or several could be.
pub async fn sandbox(client: &Client, text: &str) -> Result<String, Fault> {
    if text.parse::<SandboxId>().is_ok() {
        return Ok(text.to_owned());
    }
    let named = sandboxes(client, &Which { name: Some(text.to_owned()), ..Which::default() }).await?;
    if let [one] = &named[..] {
        return Ok(one.id.clone());
    }
    let all = if could_begin_an_id(text) { sandboxes(client, &Which::default()).await? } else { Vec::new() };
    let all = all.into_iter().map(|info| info.id).collect();
    choose("sandbox", text, all, "list them: `branchbox ls`")
}

/// The id of the snapshot that is meant.
///
/// # Errors
/// When none or several could be.
pub async fn snapshot(client: &Client, text: &str) -> Result<String, Fault> {
    if text.parse::<SnapshotId>().is_ok() {
        return Ok(text.to_owned());
    }
    let all = snapshots(client, None).await?;
    let named: Vec<_> =
        all.iter().filter(|info| info.name.as_deref() == Some(text)).map(|info| info.id.clone()).collect();
    let candidates = match named.len() {
        0 if could_begin_an_id(text) => all.into_iter().map(|info| info.id).filter(|id| id.starts_with(text)).collect(),
        _ => named,
    };
    unique("snapshot", text, candidates, "list them: `branchbox snapshots ls`")
}

fn could_begin_an_id(text: &str) -> bool {
    text.len() >= PREFIX_CHARS_MIN && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn choose(kind: &str, text: &str, mut ids: Vec<String>, hint: &str) -> Result<String, Fault> {
    ids.retain(|id| id.starts_with(text));
    unique(kind, text, ids, hint)
}

fn unique(kind: &str, text: &str, ids: Vec<String>, hint: &str) -> Result<String, Fault> {
    match &ids[..] {
        [one] => Ok(one.clone()),
        [] => {
            let short = text.len() < PREFIX_CHARS_MIN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let cause =
                format!("no id or name is `{text}`, and the beginning of an id needs {PREFIX_CHARS_MIN} characters");
            let fault = Fault::failed(format!("no {kind} `{text}`")).coded("not_found").hint(hint);
            Err(if short { fault.cause(cause) } else { fault })
        }
        several => {
            let shown = several.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
            Err(Fault::failed(format!("`{text}` is not one {kind}"))
                .coded("not_unique")
                .cause(format!("could be {shown}"))
                .hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<String> {
        ["0190aaaa-1111", "0190aaaa-2222", "0190bbbb-3333"].map(str::to_owned).into()
    }

    #[test]
    fn the_beginning_of_an_id_must_be_long_and_unique() {
        assert_eq!(choose("sandbox", "0190bb", ids(), "").expect("one"), "0190bbbb-3333");
        let several = choose("sandbox", "0190aa", ids(), "").expect_err("two");
        assert_eq!(several.code(), "not_unique");
        assert_eq!(choose("sandbox", "0190cc", ids(), "").expect_err("none").code(), "not_found");
        assert!(!could_begin_an_id("0190b") && could_begin_an_id("0190bb") && !could_begin_an_id("webweb"));
    }
}

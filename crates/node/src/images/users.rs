//! Users and groups of an image, as its own files name them.

use crate::error::NodeError;
use crate::files;
use crate::node::Node;

impl Node {
    /// Uid and gid of `name`, `id`, `name:group` or `id:group` in a sandbox, if there are such.
    pub(super) async fn owner_in(&self, sandbox: &str, text: &str) -> Result<Option<(u32, u32)>, NodeError> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let users = self.small_file(sandbox, "/etc/passwd").await?;
        let groups = self.small_file(sandbox, "/etc/group").await?;
        Ok(resolve(user, group, &users, &groups))
    }

    /// The beginning of a file, or nothing where there is none.
    async fn small_file(&self, sandbox: &str, path: &str) -> Result<String, NodeError> {
        let guest = self.guest(sandbox).await?;
        match files::read(&guest, path, 0).await {
            Ok((bytes, _)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(NodeError::Guest(_)) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

/// From the lines of the image's own files (passwd(5), group(5)).
fn resolve(user: &str, group: Option<&str>, users: &str, groups: &str) -> Option<(u32, u32)> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let number = |fields: &[String], at: usize| fields.get(at)?.parse::<u32>().ok();
    let row = users.lines().map(fields).find(|row| row.first().is_some_and(|name| name == user));
    let by_id = || users.lines().map(fields).find(|row| row.get(2).is_some_and(|id| id == user));
    let (uid, own) = match (&row, user.parse::<u32>()) {
        (Some(row), _) => (number(row, 2)?, number(row, 3)?),
        (None, Ok(uid)) => (uid, by_id().and_then(|row| number(&row, 3)).unwrap_or(0)),
        (None, Err(_)) => return None,
    };
    let Some(group) = group else { return Some((uid, own)) };
    let row = groups.lines().map(fields).find(|row| row.first().is_some_and(|name| name == group));
    let gid = row.map_or_else(|| group.parse().ok(), |row| number(&row, 2))?;
    Some((uid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_the_images_own() {
        let (users, groups) = ("root:x:0:0::/root:/bin/sh\nme:x:1000:1001::/:/bin/sh\n", "us:x:7:\n");
        for (user, group, expected) in [
            ("me", None, Some((1000, 1001))),
            ("me", Some("us"), Some((1000, 7))),
            ("1000", None, Some((1000, 1001))),
            ("5", None, Some((5, 0))),
            ("5", Some("9"), Some((5, 9))),
            ("nobody", None, None),
            ("me", Some("none"), None),
        ] {
            assert_eq!(resolve(user, group, users, groups), expected, "{user} {group:?}");
        }
    }
}

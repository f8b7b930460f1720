//! Finding the node and the key, and what its failures mean for the user.
//!
//! The address, first that is set: `--url`, `BRANCHBOX_API_URL`, `RUNTIME_API_URL`, the socket in the state directory.
//! The key: `--key-file`, `BRANCHBOX_API_KEY`, `RUNTIME_API_KEY`, `STATE/admin.key` if readable. A key is never an
//! argument: arguments are for everyone on the machine to read. The socket needs none: its peer is root or the owner.

use crate::args::Global;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::Form;
use branchbox_client::{Client, ClientError};
use branchbox_model::Code;
use std::path::{Path, PathBuf};

/// Where a node keeps everything when nothing says otherwise.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/branchbox";
/// Largest key file.
const KEY_BYTES_MAX: u64 = 4096;

/// A connection with the choices that every command takes.
#[derive(Debug)]
pub struct Session {
    /// The node.
    pub client: Client,
    /// How to show results.
    pub form: Form,
}

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An origin.
    Url(String),
    /// The socket in a state directory.
    Socket(PathBuf),
}

/// A variable's value, if set and not empty.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The state directory that the words and the environment name.
#[must_use]
pub fn state_dir(global: &Global, variable: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let named = global.state_dir.clone().or_else(|| variable("BRANCHBOX_STATE_DIR").map(PathBuf::from));
    named.unwrap_or_else(|| STATE_DIR_DEFAULT.into())
}

/// Where the node is.
#[must_use]
pub fn address(global: &Global, variable: &dyn Fn(&str) -> Option<String>) -> Address {
    let url = global.url.clone().or_else(|| variable("BRANCHBOX_API_URL")).or_else(|| variable("RUNTIME_API_URL"));
    match url {
        Some(url) => Address::Url(url),
        None => Address::Socket(state_dir(global, variable).join("node.sock")),
    }
}

/// The key, if there is one.
///
/// # Errors
/// When a named file cannot be read or holds no key.
pub fn key(global: &Global, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, Fault> {
    if let Some(path) = &global.key_file {
        return read_key(path).map(Some);
    }
    if let Some(key) = variable("BRANCHBOX_API_KEY").or_else(|| variable("RUNTIME_API_KEY")) {
        return Ok(Some(key));
    }
    Ok(read_key(&state_dir(global, variable).join("admin.key")).ok())
}

fn read_key(path: &Path) -> Result<String, Fault> {
    let failed = || Fault::usage(format!("cannot read a key from {}", path.display()));
    let size = fs_err::metadata(path).map_err(|error| failed().because(&error))?.len();
    if size > KEY_BYTES_MAX {
        return Err(failed().cause(format!("the file has {size} bytes, a key at most {KEY_BYTES_MAX}")));
    }
    let text = fs_err::read_to_string(path).map_err(|error| failed().because(&error))?;
    let key = text.trim();
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(failed().cause("it must hold one word"));
    }
    Ok(key.to_owned())
}

impl Session {
    /// Finds the node; nothing is sent yet.
    ///
    /// # Errors
    /// When the address or the key cannot be used.
    pub fn open(global: &Global) -> Result<Self, Fault> {
        let client = match address(global, &variable) {
            Address::Socket(path) => Client::unix(path),
            Address::Url(url) => {
                let key = key(global, &variable)?;
                Client::tcp(&url, key)
                    .map_err(|error| Fault::usage(format!("cannot use the address `{url}`")).because(&error))?
            }
        };
        Ok(Self { client, form: Form::of(global.json) })
    }
}

/// What a failed call means for the user: what was tried, the node's own words, its hint, and how the process ends.
#[must_use]
pub fn refused(what: &str, error: ClientError) -> Fault {
    match &error {
        ClientError::Api(info) => {
            let issues = info.details.get("issues").and_then(|issues| issues.as_array()).cloned().unwrap_or_default();
            let fault = Fault::new(exit_of(&info.code, info.status), what)
                .coded(info.code.clone())
                .request(info.request_id.clone());
            let fault = if issues.is_empty() { fault.cause(info.message.clone()) } else { fault };
            let text = |issue: &serde_json::Value, key: &str| issue[key].as_str().unwrap_or_default().to_owned();
            let fault = issues.iter().fold(fault, |fault, issue| {
                fault.cause(format!("{}: {}", text(issue, "path"), text(issue, "message")))
            });
            fault.hint_opt(info.hint.clone())
        }
        ClientError::Closed { .. } => Fault::failed(what).coded("closed").because(&error),
        ClientError::Write(_) => Fault::failed(what).coded("write_failed").because(&error),
        ClientError::Malformed { .. } => Fault::new(Exit::Internal, what).because(&error),
        _ => Fault::cannot_run(what)
            .coded("unreachable")
            .because(&error)
            .hint("start a node with `branchbox serve`, or name one with --url or --state-dir"),
    }
}

fn exit_of(code: &str, status: u16) -> Exit {
    match Code::ALL.iter().find(|known| known.as_str() == code) {
        Some(Code::InvalidRequest) => Exit::Usage,
        Some(Code::HostUnsupported | Code::Unavailable | Code::ForkUnavailable | Code::NetworkRulesUnavailable) => {
            Exit::CannotRun
        }
        Some(Code::InternalError | Code::GuestFailed) => Exit::Internal,
        None if status >= 500 => Exit::Internal,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(url: Option<&str>, state: Option<&str>) -> Global {
        Global { url: url.map(str::to_owned), key_file: None, state_dir: state.map(PathBuf::from), json: false }
    }

    #[test]
    fn the_first_address_that_is_set_wins() {
        let both = |name: &str| match name {
            "BRANCHBOX_API_URL" => Some("http://b".to_owned()),
            "RUNTIME_API_URL" => Some("http://r".to_owned()),
            _ => None,
        };
        let second = |name: &str| (name == "RUNTIME_API_URL").then(|| "http://r".to_owned());
        let none = |_: &str| None;
        assert_eq!(address(&global(Some("http://u"), None), &both), Address::Url("http://u".into()));
        assert_eq!(address(&global(None, None), &both), Address::Url("http://b".into()));
        assert_eq!(address(&global(None, None), &second), Address::Url("http://r".into()));
        assert_eq!(address(&global(None, Some("/s")), &none), Address::Socket("/s/node.sock".into()));
        assert_eq!(address(&global(None, None), &none), Address::Socket("/var/lib/branchbox/node.sock".into()));
    }

    #[test]
    fn a_key_is_one_word() {
        let place = tempfile::tempdir().expect("temporary directory");
        let file = place.path().join("key");
        let global = Global { key_file: Some(file.clone()), ..global(None, None) };
        let none = |_: &str| None;
        assert!(key(&global, &none).is_err());
        fs_err::write(&file, "two words\n").expect("file");
        assert!(key(&global, &none).is_err());
        fs_err::write(&file, "bbx_x\n").expect("file");
        assert_eq!(key(&global, &none).expect("key").as_deref(), Some("bbx_x"));
    }
}

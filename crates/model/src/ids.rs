//! Newtypes for every identifier that crosses a crate.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A text that is no id of the kind asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a {kind} id")]
pub struct IdError {
    text: String,
    kind: &'static str,
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A new id: a version 7 UUID, so ids sort by age.
            #[must_use]
            pub fn generate() -> Self {
                Self(uuid::Uuid::now_v7().hyphenated().to_string())
            }

            /// The lowercase hyphenated text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                match uuid::Uuid::try_parse(text) {
                    Ok(id) if id.hyphenated().to_string() == text => Ok(Self(text.to_owned())),
                    _ => Err(IdError { text: text.chars().take(64).collect(), kind: $kind }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

uuid_id!(
    /// Names a sandbox for its whole life, and as a tombstone after it.
    SandboxId,
    "sandbox"
);
uuid_id!(
    /// Names a snapshot.
    SnapshotId,
    "snapshot"
);

/// Numbers a command within one sandbox. Kept by forks and snapshots, so a copy's list shows the same commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecId(pub u64);

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl FromStr for ExecId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = || IdError { text: text.chars().take(64).collect(), kind: "process" };
        let digits = text.strip_prefix('p').ok_or_else(bad)?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        digits.parse().map(ExecId).map_err(|_| bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_accept_only_the_canonical_form() {
        let id = SandboxId::generate();
        assert_eq!(id.as_str().parse::<SandboxId>().as_ref(), Ok(&id));
        assert!(id.as_str().to_uppercase().parse::<SandboxId>().is_err());
        assert!("../../etc/passwd".parse::<SandboxId>().is_err());
        assert!("".parse::<SnapshotId>().is_err());
    }

    #[test]
    fn exec_ids_round_trip_and_refuse_signs() {
        assert_eq!("p17".parse::<ExecId>(), Ok(ExecId(17)));
        for bad in ["17", "p", "p-1", "p+1", "p1 ", "p99999999999999999999999"] {
            assert!(bad.parse::<ExecId>().is_err(), "{bad}");
        }
    }
}

//! What a sandbox is asked to be, checked once at the edge.

use crate::code::{Code, Coded, Retry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Virtual processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpus(pub u32);
/// Memory limit in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMib(pub u32);
/// Disk limit in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskMib(pub u32);

/// The limits a sandbox runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors, 1 to 16.
    pub vcpus: Vcpus,
    /// Memory, 128 to 65,536 MiB.
    pub memory: MemoryMib,
    /// Disk, at least 64 MiB.
    pub disk: DiskMib,
    /// Processes and threads together.
    pub pids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { vcpus: Vcpus(2), memory: MemoryMib(4096), disk: DiskMib(4096), pids: 4096 }
    }
}

/// The host ids a sandbox's ids 0 to 65,535 stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The host id of the sandbox's id 0.
    pub base: u32,
}

impl IdRange {
    /// Ids in one range.
    pub const LENGTH: u32 = 65_536;
    /// Ranges a host can hold below the 32-bit limit, after the first 100,000 ids that belong to people.
    pub const SLOTS: u32 = 30_000;

    /// The range of a slot; slots are numbered from 0.
    #[must_use]
    pub fn of_slot(slot: u32) -> Option<Self> {
        (slot < Self::SLOTS).then(|| Self { base: 131_072 + slot * Self::LENGTH })
    }
}

/// Who runs a command when it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum User {
    /// `runtime`, uid 1000.
    #[default]
    Sandbox,
    /// The sandbox's own root.
    Root,
}

/// A sandbox as asked for, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// A unique name, if any.
    pub name: Option<String>,
    /// Free pairs of text.
    pub labels: BTreeMap<String, String>,
    /// What it runs under.
    pub limits: Limits,
    /// Variables every command gets.
    pub env: BTreeMap<String, String>,
    /// Default user of commands.
    pub user: User,
}

/// A value in a request that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The request's field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Coded for SpecError {
    fn code(&self) -> Code {
        Code::InvalidRequest
    }
    fn retry(&self) -> Retry {
        Retry::Permanent
    }
    fn hint(&self) -> Option<String> {
        Some("correct the field named in details.issues and send the request again".into())
    }
}

/// Rules for names and labels, in one place.
pub mod names {
    use super::SpecError;
    use std::collections::BTreeMap;

    /// Longest name of a sandbox or snapshot, in bytes: an adapter of the SDK makes names of 70.
    pub const NAME_BYTES_MAX: usize = 100;
    /// Most labels on one thing.
    pub const LABELS_MAX: usize = 32;
    /// Longest label key or value, in characters.
    pub const LABEL_CHARS_MAX: usize = 256;
    /// Most variables in one environment.
    pub const ENV_MAX: usize = 64;
    /// All variables of one environment together, in bytes.
    pub const ENV_BYTES_MAX: usize = 128 * 1024;

    /// Checks a name: 1 to 100 of letters, digits, `.`, `-`, `_`.
    ///
    /// # Errors
    /// [`SpecError`] naming the field.
    pub fn check_name(name: &str) -> Result<(), SpecError> {
        let fine = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        if fine {
            return Ok(());
        }
        let problem = format!("must be 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` or `_`");
        Err(SpecError { field: "name", problem })
    }

    /// Checks labels: at most 32 pairs, no control characters, no empty key.
    ///
    /// # Errors
    /// [`SpecError`] naming the field.
    pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecError> {
        let error = |problem: String| Err(SpecError { field: "labels", problem });
        if labels.len() > LABELS_MAX {
            return error(format!("at most {LABELS_MAX} pairs"));
        }
        for (key, value) in labels {
            let is_long = |text: &str| text.chars().count() > LABEL_CHARS_MAX;
            if key.is_empty() || is_long(key) || is_long(value) {
                return error(format!("keys of 1 to {LABEL_CHARS_MAX} characters, values up to as many"));
            }
            if key.chars().chain(value.chars()).any(char::is_control) {
                return error("no control characters".into());
            }
        }
        Ok(())
    }

    /// Checks an environment: names as a shell accepts them, bounded in number and size, no NUL.
    ///
    /// # Errors
    /// [`SpecError`] naming the field.
    pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), SpecError> {
        let error = |problem: String| Err(SpecError { field: "env", problem });
        if env.len() > ENV_MAX {
            return error(format!("at most {ENV_MAX} variables"));
        }
        if env.iter().map(|(k, v)| k.len() + v.len() + 2).sum::<usize>() > ENV_BYTES_MAX {
            return error(format!("at most {ENV_BYTES_MAX} bytes in all"));
        }
        for (name, value) in env {
            let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            if !starts_well || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return error(format!("`{}` is not a variable name", name.escape_debug()));
            }
            if value.contains('\0') {
                return error(format!("`{name}` holds a NUL"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_newlines_or_slashes_are_refused() {
        for bad in ["", "a\nb", "a/b", "ü", &"x".repeat(names::NAME_BYTES_MAX + 1)] {
            assert!(names::check_name(bad).is_err(), "{bad:?}");
        }
        assert!(names::check_name("web-3.x_y").is_ok());
    }

    #[test]
    fn id_ranges_never_overlap_or_overflow() {
        let last = IdRange::of_slot(IdRange::SLOTS - 1).expect("last slot");
        assert!(last.base.checked_add(IdRange::LENGTH).is_some());
        assert_eq!(IdRange::of_slot(IdRange::SLOTS), None);
        assert_eq!(IdRange::of_slot(1).expect("slot").base - IdRange::of_slot(0).expect("slot").base, 65_536);
    }
}

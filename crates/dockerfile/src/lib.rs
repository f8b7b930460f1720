//! Dockerfiles and recipes: what a builder has to do, step by step.
//!
//! Pure code: [`parse`] reads the text, [`needed`] says which stages a target stands on, [`step`] goes through the
//! instructions of a stage and answers with one [`Action`] each. Whoever builds carries actions out; nothing here reads
//! a file or starts a program. What is supported, refused and ignored is in `docs/reference/dockerfile.md`.
//!
//! All text is hostile: sizes, counts and values are bounded (`limits`), nothing recurses deeper than
//! `limits::NESTING_MAX`, and no input makes it panic.

mod config;
mod error;
mod file;
pub mod glob;
pub mod ignore;
mod lines;
mod matcher;
mod oci;
mod parse;
mod recipe;
mod scope;
mod stages;
mod step;
mod words;

pub use config::{Command, Config, Healthcheck, Start, start_of};
pub use error::{ConfigError, ParseError};
pub use file::{Arg, Body, CommandText, CopyText, File, Instruction, Keyword, Source, Stage, Word};
pub use parse::parse;
pub use recipe::{Mode, Recipe, RecipeFile};
pub use scope::Scope;
pub use stages::{Base, base, needed};
pub use step::{Action, CopyFrom, step};

/// What an input may be at most; what exceeds it is refused with a sentence.
pub mod limits {
    /// Bytes of a Dockerfile.
    pub const TEXT_MAX: usize = 1 << 20;
    /// Instructions of a Dockerfile, the `FROM` lines not counted.
    pub const INSTRUCTIONS_MAX: usize = 1000;
    /// Stages of a Dockerfile.
    pub const STAGES_MAX: usize = 100;
    /// Words, pairs or heredocs of one instruction.
    pub const WORDS_MAX: usize = 1000;
    /// Bytes of one value after expansion. The kernel takes 128 KiB for one argument or variable of a program.
    pub const VALUE_MAX: usize = 96 << 10;
    /// Bytes that all expansions of one stage may make together: small values can name large ones many times.
    pub const EXPANSION_MAX: usize = 16 << 20;
    /// Bytes of all variables together; the kernel takes 2 MiB for a program's arguments and variables.
    pub const ENVIRONMENT_MAX: usize = 1 << 20;
    /// `${a:-${b:-…}}` in one another.
    pub const NESTING_MAX: usize = 16;
    /// Ports of one image.
    pub const PORTS_MAX: usize = 1024;
    /// Bytes of an image's configuration.
    pub const CONFIG_MAX: usize = 4 << 20;
    /// Bytes of an instruction as it is shown in a log.
    pub const SHOWN_MAX: usize = 4096;
}

//! A Dockerfile as data, before any variable has its value.

use crate::config::Healthcheck;

/// A Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct File {
    /// `ARG` before the first `FROM`.
    pub args: Vec<Arg>,
    /// In the order of the text.
    pub stages: Vec<Stage>,
    /// `\`, or what the `escape` directive says.
    pub escape: char,
}

/// From one `FROM` to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// `AS name`, in lower case.
    pub name: Option<String>,
    /// What `FROM` names, not expanded.
    pub from: String,
    /// `--platform`, not expanded.
    pub platform: Option<String>,
    /// What follows.
    pub instructions: Vec<Instruction>,
    /// Where the `FROM` is.
    pub line: u32,
}

/// `ARG name` or `ARG name=default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// The value it has when the builder gives none.
    pub default: Option<Word>,
    /// Where it is.
    pub line: u32,
}

/// One instruction of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// Its first line; 0 in a recipe.
    pub line: u32,
    /// What it says.
    pub body: Body,
    /// As written, for logs: continued lines joined, and not longer than [`crate::limits::SHOWN_MAX`].
    pub shown: String,
    pub(crate) escape: char,
}

/// A text with or without variables and quotes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// As written in a Dockerfile: quotes and variables still in it.
    Raw(String),
    /// Exactly this.
    Literal(String),
}

/// A command as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandText {
    /// `["program", "argument"]`.
    Exec(Vec<String>),
    /// For the stage's shell.
    Shell(String),
    /// A script with its own `#!` line, from a heredoc.
    Script(String),
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Paths of the context, of a stage or of an image.
    Paths(Vec<Word>),
    /// A heredoc, or a file of a recipe.
    Inline {
        /// The file's name if the destination is a directory.
        name: String,
        /// What is in it.
        content: Vec<u8>,
        /// Whether variables in it get their values.
        expand: bool,
    },
}

/// `COPY` and `ADD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyText {
    /// What.
    pub source: Source,
    /// Where to.
    pub to: Word,
    /// `--from`.
    pub from: Option<String>,
    /// `--chown`.
    pub chown: Option<Word>,
    /// `--chmod`.
    pub chmod: Option<Word>,
    /// `ADD`: unpacks archives.
    pub is_add: bool,
    /// Several things go to one place, so that it must be a directory.
    pub needs_directory: bool,
}

/// What an instruction says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "one per keyword")]
pub enum Body {
    Arg(Vec<Arg>),
    Env(Vec<(Word, Word)>),
    Label(Vec<(Word, Word)>),
    Run { command: CommandText, as_root: bool },
    Copy(CopyText),
    Workdir(Word),
    User(Word),
    Expose(Vec<Word>),
    Cmd(CommandText),
    Entrypoint(CommandText),
    Healthcheck(Healthcheck<CommandText>),
    Shell(Vec<String>),
    Stopsignal(Word),
    Volume,
    Maintainer,
}

macro_rules! keywords {
    ($($variant:ident = $text:literal,)*) => {
        /// The first word of an instruction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "one per keyword")]
        pub enum Keyword { $($variant,)* }

        impl Keyword {
            /// Every keyword there is, those that are refused included.
            pub const ALL: &'static [Keyword] = &[$(Keyword::$variant,)*];

            /// In capitals, as it is usually written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Keyword::$variant => $text,)* }
            }
        }
    };
}

keywords! {
    Add = "ADD",
    Arg = "ARG",
    Cmd = "CMD",
    Copy = "COPY",
    Entrypoint = "ENTRYPOINT",
    Env = "ENV",
    Expose = "EXPOSE",
    From = "FROM",
    Healthcheck = "HEALTHCHECK",
    Label = "LABEL",
    Maintainer = "MAINTAINER",
    Onbuild = "ONBUILD",
    Run = "RUN",
    Shell = "SHELL",
    Stopsignal = "STOPSIGNAL",
    User = "USER",
    Volume = "VOLUME",
    Workdir = "WORKDIR",
}

impl Keyword {
    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|keyword| keyword.as_str().eq_ignore_ascii_case(word))
    }
}

//! From one instruction, with its variables' values, to what a builder does.

use crate::config::{Command, Config, Healthcheck};
use crate::error::ParseError;
use crate::file::{Body, CommandText, CopyText, Instruction, Source, Word};
use crate::limits::{ENVIRONMENT_MAX, PORTS_MAX};
use crate::parse::excerpt;
use crate::scope::Scope;
use std::collections::BTreeMap;

/// Labels of one image, and bytes of all of them.
const LABELS_MAX: usize = 1000;

/// Where something is copied from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say what they are")]
pub enum CopyFrom {
    /// The build's own files.
    Context { sources: Vec<String> },
    /// An earlier stage.
    Stage { stage: usize, sources: Vec<String> },
    /// Another image.
    Image { image: String, sources: Vec<String> },
    /// The Dockerfile or recipe itself.
    Inline { name: String, content: Vec<u8> },
}

/// What a builder does for an instruction. Whatever else it says is in the [`Config`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Action {
    /// Nothing.
    None,
    /// Runs a command and waits for its end; another code than 0 ends the build.
    Run {
        argv: Vec<String>,
        script: Option<String>,
        env: BTreeMap<String, String>,
        user: Option<String>,
        workdir: String,
    },
    /// Copies.
    Copy {
        from: CopyFrom,
        /// Absolute.
        to: String,
        /// `to` is a folder, whatever is there.
        into_directory: bool,
        /// `name`, `id`, with `:group` or not.
        chown: Option<String>,
        /// For all that is copied.
        chmod: Option<u32>,
        /// Archives among the context's files are unpacked.
        unpack: bool,
    },
    /// Makes a folder, unless it is there.
    Directory(String),
}

/// Goes one instruction further in a stage.
///
/// # Errors
/// A variable that cannot be expanded, or a value that cannot be.
pub fn step(instruction: &Instruction, config: &mut Config, scope: &mut Scope) -> Result<Action, ParseError> {
    let mut step = Step { config, scope, escape: instruction.escape };
    step.take(&instruction.body).map_err(|problem| ParseError::new(instruction.line, problem))
}

struct Step<'a> {
    config: &'a mut Config,
    scope: &'a mut Scope,
    escape: char,
}

impl Step<'_> {
    fn expand(&mut self, word: &Word) -> Result<String, String> {
        self.scope.expand(word, &self.config.env, self.escape)
    }

    fn take(&mut self, body: &Body) -> Result<Action, String> {
        match body {
            Body::Arg(args) => {
                for arg in args {
                    self.scope.declare(arg, &self.config.env, self.escape)?;
                }
            }
            Body::Env(pairs) => self.env(pairs)?,
            Body::Label(pairs) => self.labels(pairs)?,
            Body::Run { command, as_root } => return Ok(self.run(command, *as_root)),
            Body::Copy(copy) => return self.copy(copy),
            Body::Workdir(word) => {
                let path = self.expand(word)?;
                let path = self.absolute(&path)?;
                self.config.workdir = Some(path.clone());
                return Ok(Action::Directory(path));
            }
            Body::User(word) => {
                let user = self.expand(word)?;
                check_owner(&user)?;
                self.config.user = Some(user);
            }
            Body::Expose(words) => self.expose(words)?,
            Body::Cmd(command) => {
                self.scope.has_cmd = true;
                self.config.cmd = self.command(command);
            }
            Body::Entrypoint(command) => {
                self.config.entrypoint = self.command(command);
                // A `CMD` of the image below was meant for another program.
                if !self.scope.has_cmd {
                    self.config.cmd = None;
                }
            }
            Body::Healthcheck(check) => self.config.healthcheck = Some(self.check(check)),
            Body::Shell(words) => self.config.shell.clone_from(words),
            Body::Stopsignal(word) => self.config.stop_signal = Some(self.expand(word)?),
            Body::Volume | Body::Maintainer => {}
        }
        Ok(Action::None)
    }

    fn env(&mut self, pairs: &[(Word, Word)]) -> Result<(), String> {
        // All of one instruction see the values before it.
        let mut made = Vec::new();
        for (name, value) in pairs {
            let (name, value) = (self.expand(name)?, self.expand(value)?);
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("`{}` is no variable", excerpt(&name)));
            }
            made.push((name, value));
        }
        self.config.env.extend(made);
        let bytes: usize = self.config.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ENVIRONMENT_MAX {
            Err(format!("all variables together have more than {ENVIRONMENT_MAX} bytes"))
        } else {
            Ok(())
        }
    }

    fn labels(&mut self, pairs: &[(Word, Word)]) -> Result<(), String> {
        for (name, value) in pairs {
            let (name, value) = (self.expand(name)?, self.expand(value)?);
            self.config.labels.insert(name, value);
        }
        if self.config.labels.len() > LABELS_MAX { Err(format!("more than {LABELS_MAX} labels")) } else { Ok(()) }
    }

    fn expose(&mut self, words: &[Word]) -> Result<(), String> {
        for word in words {
            let text = self.expand(word)?;
            let (ports, _) = text.split_once('/').unwrap_or((&text, ""));
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            let bad = |_| format!("`{}` is no port", excerpt(&text));
            let (first, last): (u16, u16) = (first.parse().map_err(bad)?, last.parse().map_err(bad)?);
            if usize::from(last.saturating_sub(first)) >= PORTS_MAX || last < first {
                return Err(format!("`{}` is no range of ports", excerpt(&text)));
            }
            self.config.exposed.extend(first..=last);
            self.config.exposed.sort_unstable();
            self.config.exposed.dedup();
        }
        if self.config.exposed.len() > PORTS_MAX { Err(format!("more than {PORTS_MAX} ports")) } else { Ok(()) }
    }

    fn run(&self, command: &CommandText, as_root: bool) -> Action {
        let (argv, script) = match command {
            CommandText::Exec(argv) => (argv.clone(), None),
            CommandText::Shell(text) => ([&self.config.shell[..], std::slice::from_ref(text)].concat(), None),
            CommandText::Script(text) => (Vec::new(), Some(text.clone())),
        };
        Action::Run {
            argv,
            script,
            env: self.scope.environment(&self.config.env),
            user: self.config.user.clone().filter(|_| !as_root),
            workdir: self.workdir(),
        }
    }

    fn command(&self, command: &CommandText) -> Option<Command> {
        match command {
            CommandText::Exec(argv) if argv.is_empty() => None,
            CommandText::Exec(argv) => Some(Command { argv: argv.clone(), shell: false }),
            CommandText::Shell(text) if text.trim().is_empty() => None,
            CommandText::Shell(text) | CommandText::Script(text) => {
                let argv = [&self.config.shell[..], std::slice::from_ref(text)].concat();
                Some(Command { argv, shell: true })
            }
        }
    }

    fn check(&self, check: &Healthcheck<CommandText>) -> Healthcheck {
        let test = check.test.as_ref().and_then(|test| self.command(test));
        check.clone().with(test)
    }

    fn workdir(&self) -> String {
        self.config.workdir.clone().unwrap_or_else(|| "/".into())
    }

    /// Relative paths are relative to the working directory.
    fn absolute(&self, path: &str) -> Result<String, String> {
        if path.is_empty() || path.contains('\0') || path.len() > 4096 {
            return Err(format!("`{}` is no path", excerpt(path)));
        }
        let whole = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.workdir()) };
        let mut names: Vec<&str> = Vec::new();
        for name in whole.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        Ok(format!("/{}", names.join("/")))
    }

    fn copy(&mut self, copy: &CopyText) -> Result<Action, String> {
        let to = self.expand(&copy.to)?;
        let chown = copy.chown.as_ref().map(|word| self.expand(word)).transpose()?;
        if let Some(chown) = &chown {
            check_owner(chown)?;
        }
        let chmod = copy.chmod.as_ref().map(|word| self.expand(word)).transpose()?;
        let chmod = chmod.map(|text| {
            let bits = u32::from_str_radix(&text, 8).ok().filter(|bits| *bits <= 0o7777);
            bits.ok_or_else(|| format!("`--chmod={}` is no mode in octal digits", excerpt(&text)))
        });
        let from = self.sources(copy)?;
        let is_plain = matches!(&from, CopyFrom::Inline { .. });
        let several = matches!(&from, CopyFrom::Context { sources } | CopyFrom::Stage { sources, .. }
            | CopyFrom::Image { sources, .. } if sources.len() > 1);
        let names_directory = to.ends_with('/') || matches!(to.rsplit('/').next(), Some("." | ".."));
        if several && !to.ends_with('/') && !names_directory {
            return Err("several sources need a destination that ends with `/`".into());
        }
        Ok(Action::Copy {
            from,
            to: self.absolute(&to)?,
            into_directory: names_directory || copy.needs_directory,
            chown,
            chmod: chmod.transpose()?,
            unpack: copy.is_add && !is_plain,
        })
    }

    fn sources(&mut self, copy: &CopyText) -> Result<CopyFrom, String> {
        let words = match &copy.source {
            Source::Paths(words) => words,
            Source::Inline { name, content, expand } => {
                let content = match std::str::from_utf8(content) {
                    Ok(text) if *expand => self.scope.expand_text(text, &self.config.env, self.escape)?.into_bytes(),
                    _ => content.clone(),
                };
                return Ok(CopyFrom::Inline { name: name.clone(), content });
            }
        };
        let sources = words.iter().map(|word| self.expand(word)).collect::<Result<Vec<_>, _>>()?;
        let is_remote = |source: &&String| source.contains("://") || source.starts_with("git@");
        if let Some(remote) = sources.iter().find(is_remote).filter(|_| copy.is_add) {
            return Err(format!("`ADD {}`: only files of the context can be added", excerpt(remote)));
        }
        let Some(from) = &copy.from else { return Ok(CopyFrom::Context { sources }) };
        if let Some(stage) = self.scope.stage_of_copy(from) {
            return Ok(CopyFrom::Stage { stage, sources });
        }
        if self.scope.later.iter().any(|name| name.eq_ignore_ascii_case(from)) {
            return Err(format!("the stage `{}` comes later", excerpt(from)));
        }
        Ok(CopyFrom::Image { image: from.clone(), sources })
    }
}

fn check_owner(text: &str) -> Result<(), String> {
    let is_part = |part: &str| !part.is_empty() && part.len() <= 256 && !part.contains(['\0', '\n', ':', '/']);
    let mut parts = text.split(':');
    let fine = parts.next().is_some_and(is_part) && parts.next().is_none_or(is_part) && parts.next().is_none();
    if fine { Ok(()) } else { Err(format!("`{}` is no user, nor a user and a group", excerpt(text))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn steps(text: &str) -> Result<(Vec<Action>, Config), ParseError> {
        let file = parse(text)?;
        let last = file.stages.len() - 1;
        let mut scope = Scope::new(&file, last, &BTreeMap::from([("GIVEN".to_owned(), "g".to_owned())]))?;
        let mut config = Config::default();
        let made = file.stages[last].instructions.iter().map(|instruction| step(instruction, &mut config, &mut scope));
        let made: Vec<Action> = made.collect::<Result<_, _>>()?;
        Ok((made.into_iter().filter(|action| *action != Action::None).collect(), config))
    }

    #[test]
    fn commands_see_arguments_variables_and_the_directory() {
        let text = "FROM x\nARG GIVEN=d OTHER=o\nENV A=$GIVEN B=$A\nWORKDIR /w\nWORKDIR v/../u\nUSER me:us\nRUN echo $A\nRUN [\"a\", \"$A\"]";
        let (made, config) = steps(text).expect("steps");
        assert_eq!(made[..2], [Action::Directory("/w".into()), Action::Directory("/w/u".into())]);
        let Action::Run { argv, env, user, workdir, .. } = &made[2] else { panic!("{made:?}") };
        assert_eq!(argv, &["/bin/sh", "-c", "echo $A"]);
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["OTHER"].as_str()), ("g", "", "o"));
        assert_eq!((user.as_deref(), workdir.as_str()), (Some("me:us"), "/w/u"));
        assert!(matches!(&made[3], Action::Run { argv, .. } if argv[1] == "$A"));
        assert!(!config.env.contains_key("GIVEN"), "arguments are not the image's");
    }

    #[test]
    fn copies() {
        let text = "FROM x AS one\nFROM y\nWORKDIR /w\nCOPY a b/\nCOPY --from=ONE --chown=1:2 --chmod=0750 /e f\nCOPY --from=img a /b\n\
            ADD c.tar /d\nCOPY <<F g\n$PATH\nF";
        let (made, _) = steps(text).expect("steps");
        let Action::Copy { from, to, into_directory, chmod, unpack, .. } = &made[1] else { panic!("{made:?}") };
        assert_eq!(*from, CopyFrom::Context { sources: vec!["a".into()] });
        assert_eq!((to.as_str(), *into_directory, *chmod, *unpack), ("/w/b", true, None, false));
        let Action::Copy { from, chown, chmod, .. } = &made[2] else { panic!("{made:?}") };
        assert_eq!(*from, CopyFrom::Stage { stage: 0, sources: vec!["/e".into()] });
        assert_eq!((chown.as_deref(), *chmod), (Some("1:2"), Some(0o750)));
        assert!(matches!(&made[3], Action::Copy { from: CopyFrom::Image { image, .. }, .. } if image == "img"));
        assert!(matches!(&made[4], Action::Copy { unpack: true, .. }));
        assert!(matches!(&made[5], Action::Copy { from: CopyFrom::Inline { content, .. }, .. } if content == b"\n"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for text in [
            "FROM x\nADD https://h/x /y",
            "FROM x\nCOPY a b c",
            "FROM x\nCOPY --chmod=u+x a b",
            "FROM x\nUSER a:b:c",
            "FROM x\nEXPOSE 99999",
            "FROM x\nCOPY --from=y a b\nFROM z AS y",
            "FROM x\nENV ${A:?none}=1",
        ] {
            let problem = match text.contains("FROM z") {
                true => parse(text)
                    .and_then(|file| {
                        let mut scope = Scope::new(&file, 0, &BTreeMap::new())?;
                        step(&file.stages[0].instructions[0], &mut Config::default(), &mut scope)
                    })
                    .map(drop),
                false => steps(text).map(drop),
            };
            assert_eq!(problem.map_err(|problem| problem.line), Err(2), "{text}");
        }
    }

    #[test]
    fn what_an_image_runs() {
        let (_, config) = steps(
            "FROM x\nCMD a\nENTRYPOINT [\"e\"]\nEXPOSE 80/tcp 90-92\nHEALTHCHECK --interval=2s CMD ok\nLABEL a=b",
        )
        .expect("steps");
        assert_eq!(config.entrypoint.as_ref().expect("entrypoint").argv, ["e"]);
        assert_eq!(config.cmd.as_ref().expect("cmd").argv, ["/bin/sh", "-c", "a"]);
        assert_eq!(config.exposed, [80, 90, 91, 92]);
        assert_eq!(config.labels["a"], "b");
        let start = crate::start_of(&config).expect("a start");
        assert_eq!((start.argv.len(), start.ready), (4, Some(vec!["/bin/sh".into(), "-c".into(), "ok".into()])));
    }
}

//! From text to [`File`]: the shape of every instruction is checked here, before anything is built.
//!
//! What depends on a variable's value is checked by [`crate::step()`].

use crate::config::Healthcheck;
use crate::error::ParseError;
use crate::file::{Arg, Body, CommandText, CopyText, File, Instruction, Keyword, Source, Stage, Word};
use crate::limits::{INSTRUCTIONS_MAX, SHOWN_MAX, STAGES_MAX, TEXT_MAX, VALUE_MAX, WORDS_MAX};
use crate::lines::{Heredoc, Line, Lines, heredoc};
use crate::words;

type Checked<T> = Result<T, String>;

/// Reads a Dockerfile.
///
/// # Errors
/// The first line that is no instruction, or one that is not supported.
pub fn parse(text: &str) -> Result<File, ParseError> {
    if text.len() > TEXT_MAX {
        return Err(ParseError::new(0, format!("a Dockerfile has at most {TEXT_MAX} bytes")));
    }
    if let Some(at) = text.find('\0') {
        let line = text[..at].split('\n').count();
        return Err(ParseError::new(u32::try_from(line).unwrap_or(u32::MAX), "a zero byte"));
    }
    let mut lines = Lines::open(text)?;
    let mut file = File { escape: lines.escape, ..File::default() };
    let mut count = 0;
    while let Some(line) = lines.next()? {
        let number = line.number;
        add(&mut file, line, &mut count).map_err(|problem| ParseError::new(number, problem))?;
    }
    if file.stages.is_empty() {
        return Err(ParseError::new(0, "there is no `FROM`"));
    }
    Ok(file)
}

fn add(file: &mut File, line: Line, count: &mut usize) -> Checked<()> {
    let number = line.number;
    if line.keyword == Keyword::From {
        if file.stages.len() == STAGES_MAX {
            return Err(format!("more than {STAGES_MAX} stages"));
        }
        file.stages.push(stage(&line, file.escape)?);
        return Ok(());
    }
    *count += 1;
    let shown = shown(&line);
    let bodies = bodies(line, file.escape)?;
    if *count > INSTRUCTIONS_MAX {
        return Err(format!("more than {INSTRUCTIONS_MAX} instructions"));
    }
    for body in bodies {
        match (file.stages.last_mut(), body) {
            (Some(stage), body) => {
                let escape = file.escape;
                stage.instructions.push(Instruction { line: number, body, shown: shown.clone(), escape });
            }
            (None, Body::Arg(args)) => file.args.extend(args),
            (None, _) => return Err("only `ARG` may stand before the first `FROM`".into()),
        }
    }
    Ok(())
}

fn shown(line: &Line) -> String {
    let text = format!("{} {}", line.keyword.as_str(), line.rest);
    text.chars().take(SHOWN_MAX / 4).collect()
}

fn stage(line: &Line, escape: char) -> Checked<Stage> {
    let (mut flags, rest) = flags(&line.rest, escape)?;
    let platform = flags.take("platform");
    flags.none_left(line.keyword)?;
    let words: Vec<&str> = rest.split_whitespace().take(4).collect();
    let (from, name) = match words[..] {
        [from] => (from, None),
        [from, r#as, name] if r#as.eq_ignore_ascii_case("as") => (from, Some(stage_name(name)?)),
        _ => return Err("`FROM` takes an image, and `AS` with a name or nothing".into()),
    };
    Ok(Stage { name, from: from.to_owned(), platform, instructions: Vec::new(), line: line.number })
}

fn stage_name(name: &str) -> Checked<String> {
    let name = name.to_ascii_lowercase();
    let fine = name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
        && name != "scratch";
    if fine && name.len() <= 255 { Ok(name) } else { Err(format!("`{}` is no name for a stage", excerpt(&name))) }
}

/// One body, or more where one `COPY` has several sources of different kinds.
fn bodies(line: Line, escape: char) -> Checked<Vec<Body>> {
    let keyword = line.keyword;
    let (mut flags, rest) = flags(&line.rest, escape)?;
    let body = match keyword {
        Keyword::Run => run(&mut flags, rest, &line.heredocs)?,
        Keyword::Copy | Keyword::Add => {
            let made = copies(&mut flags, rest, &line.heredocs, keyword, escape)?;
            flags.none_left(keyword)?;
            return Ok(made);
        }
        Keyword::Healthcheck => healthcheck(&mut flags, rest)?,
        _ => plain(keyword, rest, line.number, escape)?,
    };
    flags.none_left(keyword)?;
    Ok(vec![body])
}

/// Instructions without flags.
fn plain(keyword: Keyword, rest: &str, line: u32, escape: char) -> Checked<Body> {
    if keyword == Keyword::Onbuild {
        return Err("`ONBUILD` is not supported".into());
    }
    if rest.is_empty() && !matches!(keyword, Keyword::Cmd | Keyword::Entrypoint) {
        return Err(format!("`{}` says nothing", keyword.as_str()));
    }
    let one = || Word::Raw(rest.to_owned());
    Ok(match keyword {
        Keyword::Arg => Body::Arg(args(rest, line, escape)?),
        Keyword::Env => Body::Env(pairs(keyword, rest, escape)?),
        Keyword::Label => Body::Label(pairs(keyword, rest, escape)?),
        Keyword::Workdir => Body::Workdir(one()),
        Keyword::User => Body::User(one()),
        Keyword::Stopsignal => Body::Stopsignal(one()),
        Keyword::Expose => {
            Body::Expose(bounded(rest.split_whitespace())?.into_iter().map(|word| Word::Raw(word.into())).collect())
        }
        Keyword::Cmd => Body::Cmd(command(rest)?),
        Keyword::Entrypoint => Body::Entrypoint(command(rest)?),
        Keyword::Shell => match json(rest) {
            Some(words) if !words.is_empty() => Body::Shell(words),
            _ => return Err("`SHELL` takes a JSON list of words".into()),
        },
        Keyword::Volume => Body::Volume,
        _ => Body::Maintainer,
    })
}

fn bounded<'t>(words: impl Iterator<Item = &'t str>) -> Checked<Vec<&'t str>> {
    let words: Vec<&str> = words.take(WORDS_MAX + 1).collect();
    if words.len() > WORDS_MAX { Err(format!("more than {WORDS_MAX} words")) } else { Ok(words) }
}

fn words_of(rest: &str, escape: char) -> Checked<Vec<&str>> {
    bounded(words::split(rest, escape, WORDS_MAX + 2).into_iter())
}

fn args(rest: &str, line: u32, escape: char) -> Checked<Vec<Arg>> {
    let mut args = Vec::new();
    for word in words_of(rest, escape)? {
        let (name, default) = match word.split_once('=') {
            Some((name, default)) => (name, Some(Word::Raw(default.to_owned()))),
            None => (word, None),
        };
        if name.is_empty() || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.".contains(letter)) {
            return Err(format!("`{}` is no name for an `ARG`", excerpt(name)));
        }
        args.push(Arg { name: name.to_owned(), default, line });
    }
    Ok(args)
}

/// `key=value …`, or `key value` with the rest of the line as its value.
fn pairs(keyword: Keyword, rest: &str, escape: char) -> Checked<Vec<(Word, Word)>> {
    let raw = |text: &str| Word::Raw(text.to_owned());
    let words = words_of(rest, escape)?;
    if words.first().is_some_and(|word| !word.contains('=')) {
        let (key, value) = rest
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("`{}` takes a name and a value", keyword.as_str()))?;
        return Ok(vec![(raw(key), raw(value.trim_start()))]);
    }
    let pair = |word: &&str| match word.split_once('=') {
        Some(("", _)) | None => Err(format!("`{}` is not `name=value`", excerpt(word))),
        Some((key, value)) => Ok((raw(key), raw(value))),
    };
    words.iter().map(pair).collect()
}

fn command(rest: &str) -> Checked<CommandText> {
    let command = match json(rest) {
        Some(words) => CommandText::Exec(words),
        None => CommandText::Shell(rest.to_owned()),
    };
    fits(&command)?;
    Ok(command)
}

/// The kernel takes no longer argument.
fn fits(command: &CommandText) -> Checked<()> {
    let longest = match command {
        CommandText::Exec(words) if words.len() > WORDS_MAX => return Err(format!("more than {WORDS_MAX} words")),
        CommandText::Exec(words) => words.iter().map(String::len).max().unwrap_or_default(),
        CommandText::Shell(text) | CommandText::Script(text) => text.len(),
    };
    let has_zero = matches!(command, CommandText::Exec(words) if words.iter().any(|word| word.contains('\0')));
    if longest > VALUE_MAX {
        return Err(format!("a command has more than {VALUE_MAX} bytes"));
    }
    if has_zero { Err("a zero byte in a command".into()) } else { Ok(()) }
}

/// A JSON list of texts; what is none is read as plain text, as Docker does.
fn json(rest: &str) -> Option<Vec<String>> {
    if rest.starts_with('[') { serde_json::from_str(rest).ok() } else { None }
}

fn run(flags: &mut Flags<'_>, rest: &str, heredocs: &[Heredoc]) -> Checked<Body> {
    while let Some(mount) = flags.take("mount") {
        let kind = mount.split(',').find_map(|field| field.strip_prefix("type=")).unwrap_or("bind").to_owned();
        if kind != "cache" {
            return Err(format!("`RUN --mount=type={}` is not supported", excerpt(&kind)));
        }
    }
    for (flag, default) in [("network", "default"), ("security", "sandbox")] {
        if let Some(value) = flags.take(flag).filter(|value| value != default) {
            return Err(format!("`RUN --{flag}={}` is not supported", excerpt(&value)));
        }
    }
    let command = match heredocs {
        [] => command(rest)?,
        [only] if heredoc(rest).is_some() && only.raw.starts_with("#!") => CommandText::Script(only.content()),
        [only] if heredoc(rest).is_some() => CommandText::Shell(only.content()),
        // The shell reads them itself.
        several => {
            let bodies = several.iter().map(|heredoc| format!("{}{}\n", heredoc.raw, heredoc.name));
            CommandText::Shell(format!("{rest}\n{}", bodies.collect::<String>()))
        }
    };
    fits(&command)?;
    if matches!(&command, CommandText::Shell(text) if text.trim().is_empty()) || command == CommandText::Exec(vec![]) {
        return Err("`RUN` says nothing".into());
    }
    Ok(Body::Run { command, as_root: false })
}

fn copies(
    flags: &mut Flags<'_>,
    rest: &str,
    heredocs: &[Heredoc],
    keyword: Keyword,
    escape: char,
) -> Checked<Vec<Body>> {
    let is_add = keyword == Keyword::Add;
    let from = if is_add { None } else { flags.take("from") };
    if from.as_deref().is_some_and(|from| from.contains('$')) {
        return Err("`--from` takes no variables: name the image in a `FROM … AS name` before".into());
    }
    let word = |text: Option<String>| text.map(Word::Raw);
    let (chown, chmod) = (word(flags.take("chown")), word(flags.take("chmod")));
    flags.take("link");
    let words = match json(rest) {
        Some(words) if words.len() > WORDS_MAX => return Err(format!("more than {WORDS_MAX} words")),
        Some(words) => words,
        None if heredocs.is_empty() => bounded(rest.split_whitespace())?.into_iter().map(str::to_owned).collect(),
        None => words_of(rest, escape)?.into_iter().map(str::to_owned).collect(),
    };
    let Some((to, sources)) = words.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(format!("`{}` takes at least one source and a destination", keyword.as_str()));
    };
    let is_heredoc = |word: &String| !heredocs.is_empty() && heredoc(word).is_some();
    if !heredocs.is_empty() && is_heredoc(to) {
        return Err("the destination is a heredoc".into());
    }
    let paths: Vec<Word> =
        sources.iter().filter(|word| !is_heredoc(word)).map(|word| Word::Raw(word.clone())).collect();
    let needs_directory = sources.len() > 1;
    let with = |source| {
        let to = Word::Raw(to.clone());
        let (from, chown, chmod) = (from.clone(), chown.clone(), chmod.clone());
        Body::Copy(CopyText { source, to, from, chown, chmod, is_add, needs_directory })
    };
    let mut made = Vec::new();
    if !paths.is_empty() {
        made.push(with(Source::Paths(paths)));
    }
    for heredoc in heredocs {
        let content = heredoc.content();
        if heredoc.expand && content.len() > VALUE_MAX {
            return Err(format!("a heredoc with variables has at most {VALUE_MAX} bytes; quote its name"));
        }
        made.push(with(Source::Inline { name: heredoc.name.clone(), content: content.into(), expand: heredoc.expand }));
    }
    Ok(made)
}

fn healthcheck(flags: &mut Flags<'_>, rest: &str) -> Checked<Body> {
    let mut check = Healthcheck::none();
    for (flag, field) in [
        ("interval", &mut check.interval_ms),
        ("timeout", &mut check.timeout_ms),
        ("start-period", &mut check.start_period_ms),
        ("start-interval", &mut check.start_interval_ms),
    ] {
        if let Some(text) = flags.take(flag) {
            *field = Some(duration(&text).ok_or_else(|| format!("`--{flag}` takes a time such as `1m30s`"))?);
        }
    }
    if let Some(text) = flags.take("retries") {
        check.retries = Some(text.parse().map_err(|_| "`--retries` takes a number".to_owned())?);
    }
    let (kind, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if kind.eq_ignore_ascii_case("none") && text.is_empty() {
        return Ok(Body::Healthcheck(Healthcheck::none()));
    }
    let text = text.trim();
    if !kind.eq_ignore_ascii_case("cmd") || text.is_empty() || text == "[]" {
        return Err("`HEALTHCHECK` takes `NONE`, or `CMD` and a command".into());
    }
    check.test = Some(command(text)?);
    Ok(Body::Healthcheck(check))
}

/// `1h2m3.5s`, `500ms`, `0`: milliseconds.
fn duration(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let unit_at = rest.find(|letter: char| letter != '.' && !letter.is_ascii_digit())?;
        let (amount, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|letter: char| letter == '.' || letter.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_ms = match unit {
            "h" => 3_600_000.0,
            "m" => 60_000.0,
            "s" => 1000.0,
            "ms" => 1.0,
            "us" | "µs" => 0.001,
            "ns" => 0.000_001,
            _ => return None,
        };
        total += amount.parse::<f64>().ok()? * unit_ms;
        rest = tail;
    }
    // A day is longer than any check waits.
    let fits = !text.is_empty() && total <= 86_400_000.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a day")]
    fits.then_some(total as u64)
}

/// `--name=value` before an instruction's words.
struct Flags<'t>(Vec<(&'t str, &'t str)>);

impl Flags<'_> {
    /// The first of that name, without quotes.
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(flag, _)| *flag == name)?;
        let value = self.0.remove(at).1;
        let bare = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        Some(bare.unwrap_or(value).to_owned())
    }

    fn none_left(&self, keyword: Keyword) -> Checked<()> {
        match self.0.first() {
            Some((flag, _)) => Err(format!("`{} --{}` is not supported", keyword.as_str(), excerpt(flag))),
            None => Ok(()),
        }
    }
}

fn flags(rest: &str, escape: char) -> Checked<(Flags<'_>, &str)> {
    let mut found = Vec::new();
    let mut rest = rest;
    while rest.starts_with("--") {
        if found.len() == 100 {
            return Err("more than 100 flags".into());
        }
        let words = words::split(rest, escape, 2);
        let flag = words.first().copied().unwrap_or_default();
        let (first, tail) = (flag, rest[flag.len()..].trim_start());
        rest = tail;
        if first == "--" {
            break;
        }
        found.push(first[2..].split_once('=').unwrap_or((&first[2..], "")));
    }
    Ok((Flags(found), rest))
}

/// Enough of a text to find it.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

//! Build arguments: which are known where, and what stands in an instruction's variables.

use crate::error::ParseError;
use crate::file::{Arg, File, Word};
use crate::limits::EXPANSION_MAX;
use crate::words::{self, Quotes};
use std::collections::BTreeMap;

/// What every build knows of itself; a stage sees one after an `ARG` that names it.
const AUTOMATIC: &[(&str, &str)] = &[
    ("BUILDARCH", "amd64"),
    ("BUILDOS", "linux"),
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDVARIANT", ""),
    ("TARGETARCH", "amd64"),
    ("TARGETOS", "linux"),
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETVARIANT", ""),
];
/// What commands see without an `ARG`, if the builder gives it.
const PROXIES: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];

/// The build arguments of one stage, and the stages before it.
#[derive(Debug, Clone)]
pub struct Scope {
    given: BTreeMap<String, String>,
    /// Before the first `FROM`.
    global: BTreeMap<String, String>,
    /// Declared in this stage, or in one that it stands on.
    declared: BTreeMap<String, String>,
    /// Names of the stages before this one.
    pub(crate) earlier: Vec<Option<String>>,
    /// Names of this one and those after it.
    pub(crate) later: Vec<String>,
    /// `CMD` was said in this stage.
    pub(crate) has_cmd: bool,
    budget: usize,
}

impl Scope {
    /// For the stage with this number.
    ///
    /// # Errors
    /// When an `ARG` before the first `FROM` cannot be expanded.
    pub fn new(file: &File, stage: usize, given: &BTreeMap<String, String>) -> Result<Self, ParseError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut global: BTreeMap<String, String> = AUTOMATIC.iter().map(owned).collect();
        let mut budget = EXPANSION_MAX;
        for arg in &file.args {
            let value = match (given.get(&arg.name), &arg.default) {
                (Some(value), _) => value.clone(),
                (None, Some(word)) => expand(word, file.escape, &|name| get(&global, name), &mut budget)
                    .map_err(|problem| ParseError::new(arg.line, problem))?,
                (None, None) => continue,
            };
            global.insert(arg.name.clone(), value);
        }
        let names = || file.stages.iter().map(|stage| stage.name.clone());
        Ok(Self {
            given: given.clone(),
            global,
            declared: BTreeMap::new(),
            earlier: names().take(stage).collect(),
            later: names().skip(stage).flatten().collect(),
            has_cmd: false,
            budget,
        })
    }

    /// Takes over what was declared in the stage that this one stands on (`FROM` with a stage's name).
    pub fn inherit(&mut self, base: &Self) {
        self.declared.extend(base.declared.iter().map(|(name, value)| (name.clone(), value.clone())));
    }

    /// With the variables that a `FROM` sees.
    pub(crate) fn expand_global(&mut self, text: &str, escape: char) -> Result<String, String> {
        let word = Word::Raw(text.to_owned());
        expand(&word, escape, &|name| get(&self.global, name), &mut self.budget)
    }

    pub(crate) fn declare(&mut self, arg: &Arg, env: &BTreeMap<String, String>, escape: char) -> Result<(), String> {
        let value = match (self.given.get(&arg.name), &arg.default) {
            (Some(value), _) => Some(value.clone()),
            (None, Some(word)) => Some(self.expand(word, env, escape)?),
            (None, None) => self.global.get(&arg.name).cloned(),
        };
        if let Some(value) = value {
            self.declared.insert(arg.name.clone(), value);
        }
        Ok(())
    }

    pub(crate) fn expand(
        &mut self,
        word: &Word,
        env: &BTreeMap<String, String>,
        escape: char,
    ) -> Result<String, String> {
        let value_of = |name: &str| env.get(name).or_else(|| self.declared.get(name)).map(String::as_str);
        expand(word, escape, &value_of, &mut self.budget)
    }

    /// Variables of a heredoc, in which quotes are text.
    pub(crate) fn expand_text(
        &mut self,
        text: &str,
        env: &BTreeMap<String, String>,
        escape: char,
    ) -> Result<String, String> {
        let value_of = |name: &str| env.get(name).or_else(|| self.declared.get(name)).map(String::as_str);
        words::expand(text, escape, Quotes::Text, &value_of, &mut self.budget)
    }

    /// What a command sees: arguments, and the image's variables over them.
    pub(crate) fn environment(&self, env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let is_proxy = |name: &str| PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(name));
        let mut all: BTreeMap<String, String> = self
            .given
            .iter()
            .filter(|(name, _)| is_proxy(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for variables in [&self.declared, env] {
            all.extend(variables.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        all
    }
}

fn get<'m>(map: &'m BTreeMap<String, String>, name: &str) -> Option<&'m str> {
    map.get(name).map(String::as_str)
}

fn expand<'v>(
    word: &Word,
    escape: char,
    value_of: &'v dyn Fn(&str) -> Option<&'v str>,
    budget: &mut usize,
) -> Result<String, String> {
    match word {
        Word::Literal(text) => Ok(text.clone()),
        Word::Raw(text) => words::expand(text, escape, Quotes::Group, value_of, budget),
    }
}

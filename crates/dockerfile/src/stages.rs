//! Which stages a target stands on.

use crate::error::ParseError;
use crate::file::{Body, File};
use crate::parse::excerpt;
use crate::scope::Scope;
use std::collections::BTreeMap;

/// The only platform that images are built for.
const PLATFORM: &str = "linux/amd64";

/// What a `FROM` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Nothing at all.
    Scratch,
    /// An earlier stage.
    Stage(usize),
    /// An image by its reference.
    Image(String),
}

/// What the `FROM` of a stage names, variables expanded.
///
/// # Errors
/// When a variable cannot be expanded, nothing is left, or the platform is another.
pub fn base(file: &File, stage: usize, args: &BTreeMap<String, String>) -> Result<Base, ParseError> {
    let Some(this) = file.stages.get(stage) else {
        return Err(ParseError::new(0, format!("there is no stage {stage}")));
    };
    let mut scope = Scope::new(file, stage, args)?;
    let wrong = |problem: String| ParseError::new(this.line, problem);
    if let Some(platform) = &this.platform {
        let platform = scope.expand_global(platform, file.escape).map_err(wrong)?;
        if platform != PLATFORM {
            return Err(wrong(format!("the platform `{}` is not supported, `{PLATFORM}` is", excerpt(&platform))));
        }
    }
    let from = scope.expand_global(&this.from, file.escape).map_err(wrong)?;
    if from.is_empty() || from.contains(char::is_whitespace) || from.len() > 1024 {
        return Err(wrong(format!("`FROM {}` names no image", excerpt(&this.from))));
    }
    if from == "scratch" {
        return Ok(Base::Scratch);
    }
    Ok(scope.stage_named(&from).map_or(Base::Image(from), Base::Stage))
}

/// The stages that `target` (a name or a number; the last one without) needs, itself included, in the order to build them.
///
/// # Errors
/// When there is no such stage, or a `FROM` that is needed cannot be expanded.
pub fn needed(file: &File, args: &BTreeMap<String, String>, target: Option<&str>) -> Result<Vec<usize>, ParseError> {
    let last = file.stages.len().checked_sub(1).ok_or_else(|| ParseError::new(0, "there is no `FROM`"))?;
    let first = match target {
        None => last,
        Some(name) => find_target(file, name)
            .ok_or_else(|| ParseError::new(0, format!("there is no stage `{}`", excerpt(name))))?,
    };
    let mut is_needed = vec![false; file.stages.len()];
    let mut open = vec![first];
    while let Some(stage) = open.pop() {
        if std::mem::replace(&mut is_needed[stage], true) {
            continue;
        }
        if let Base::Stage(base) = base(file, stage, args)? {
            open.push(base);
        }
        let scope = Scope::new(file, stage, args)?;
        for instruction in &file.stages[stage].instructions {
            if let Body::Copy(copy) = &instruction.body {
                open.extend(copy.from.as_deref().and_then(|from| scope.stage_of_copy(from)));
            }
        }
    }
    Ok((0..=last).filter(|stage| is_needed[*stage]).collect())
}

fn find_target(file: &File, name: &str) -> Option<usize> {
    let is_it = |stage: &Option<String>| stage.as_deref().is_some_and(|stage| stage.eq_ignore_ascii_case(name));
    let named = file.stages.iter().rposition(|stage| is_it(&stage.name));
    named.or_else(|| name.parse().ok().filter(|number| *number < file.stages.len()))
}

impl Scope {
    /// An earlier stage of that name; the last of them if there are several.
    pub(crate) fn stage_named(&self, name: &str) -> Option<usize> {
        self.earlier.iter().rposition(|stage| stage.as_deref().is_some_and(|stage| stage.eq_ignore_ascii_case(name)))
    }

    /// `COPY --from`: a name, or a number.
    pub(crate) fn stage_of_copy(&self, from: &str) -> Option<usize> {
        let number = || from.parse().ok().filter(|number| *number < self.earlier.len());
        self.stage_named(from).or_else(number)
    }
}

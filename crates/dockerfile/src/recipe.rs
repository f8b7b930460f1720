//! Recipes: a build by a list of things to install, which is a short Dockerfile.

use crate::error::ParseError;
use crate::file::{Body, CommandText, CopyText, File, Instruction, Source, Stage, Word};
use crate::limits::{INSTRUCTIONS_MAX, VALUE_MAX, WORDS_MAX};
use crate::parse::excerpt;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Where a recipe begins when it names no base.
const BASE: &str = "host";

/// A file's permission bits, as a number or in octal digits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the forms say what they are")]
pub enum Mode {
    Number(u32),
    Octal(String),
}

/// A file that is there after the build.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeFile {
    /// Where; relative to the working directory.
    pub path: String,
    /// What is in it.
    #[serde(default)]
    pub content: String,
    /// 0644 without.
    #[serde(default)]
    pub mode: Option<Mode>,
}

/// What to put on a base, in this order: variables, the working directory, packages, files, commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the fields are the wire contract's")]
pub struct Recipe {
    pub base: Option<String>,
    pub apt: Vec<String>,
    pub pip: Vec<String>,
    pub npm: Vec<String>,
    pub commands: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub files: Vec<RecipeFile>,
    pub workdir: Option<String>,
}

impl Recipe {
    /// As a Dockerfile of one stage.
    ///
    /// # Errors
    /// What a Dockerfile could not say, or package names that are none.
    pub fn into_file(self) -> Result<File, ParseError> {
        self.stage().map_err(|problem| ParseError::new(0, problem))
    }

    fn stage(self) -> Result<File, String> {
        let mut made = Vec::new();
        let mut add = |shown: String, body: Body| {
            made.push(Instruction { line: 0, body, shown: shown.chars().take(1000).collect(), escape: '\\' });
        };
        let literal = |text: &str| Word::Literal(text.to_owned());
        if !self.env.is_empty() {
            let names: Vec<&str> = self.env.keys().map(String::as_str).collect();
            let pairs = self.env.iter().map(|(name, value)| (literal(name), literal(value))).collect();
            add(format!("ENV {}", names.join(" ")), Body::Env(pairs));
        }
        if let Some(workdir) = &self.workdir {
            add(format!("WORKDIR {workdir}"), Body::Workdir(literal(workdir)));
        }
        for argv in installers(&self)? {
            add(format!("RUN {}", argv.join(" ")), Body::Run { command: CommandText::Exec(argv), as_root: true });
        }
        for file in self.files {
            if file.path.is_empty() || file.path.ends_with('/') {
                return Err(format!("`{}` is no path of a file", excerpt(&file.path)));
            }
            let chmod = file.mode.as_ref().map(octal).transpose()?.map(Word::Literal);
            let name = file.path.rsplit('/').next().unwrap_or_default().to_owned();
            let body = Body::Copy(CopyText {
                source: Source::Inline { name, content: file.content.into_bytes(), expand: false },
                to: Word::Literal(file.path.clone()),
                from: None,
                chown: None,
                chmod,
                is_add: false,
                needs_directory: false,
            });
            add(format!("COPY {}", file.path), body);
        }
        for command in self.commands {
            if command.trim().is_empty() || command.len() > VALUE_MAX || command.contains('\0') {
                return Err(format!("a command has 1 to {VALUE_MAX} bytes"));
            }
            add(format!("RUN {command}"), Body::Run { command: CommandText::Shell(command), as_root: false });
        }
        if made.len() > INSTRUCTIONS_MAX {
            return Err(format!("more than {INSTRUCTIONS_MAX} steps"));
        }
        let from = self.base.filter(|base| !base.is_empty()).unwrap_or_else(|| BASE.to_owned());
        let stage = Stage { name: None, from, platform: None, instructions: made, line: 0 };
        Ok(File { args: Vec::new(), stages: vec![stage], escape: '\\' })
    }
}

fn octal(mode: &Mode) -> Result<String, String> {
    let bits = match mode {
        Mode::Number(bits) => Some(*bits),
        Mode::Octal(text) => u32::from_str_radix(text, 8).ok(),
    };
    let bits = bits.filter(|bits| *bits <= 0o7777).ok_or("a mode is a number up to 7777 in octal")?;
    Ok(format!("{bits:o}"))
}

/// The commands that install packages.
fn installers(recipe: &Recipe) -> Result<Vec<Vec<String>>, String> {
    let words = |first: &[&str], packages: &[String]| -> Result<Vec<String>, String> {
        let is_bad = |name: &&String| {
            name.is_empty() || name.starts_with('-') || name.contains(['\0', '\n']) || name.len() > 1024
        };
        if let Some(bad) = packages.iter().find(is_bad) {
            return Err(format!("`{}` is no name of a package", excerpt(bad)));
        }
        if packages.len() > WORDS_MAX {
            return Err(format!("more than {WORDS_MAX} packages"));
        }
        Ok(first.iter().map(|word| (*word).to_owned()).chain(packages.iter().cloned()).collect())
    };
    let mut made = Vec::new();
    if !recipe.apt.is_empty() {
        made.push(words(&["apt-get", "update"], &[])?);
        let install = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends"];
        made.push(words(&install, &recipe.apt)?);
    }
    if !recipe.pip.is_empty() {
        let install =
            ["env", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_ROOT_USER_ACTION=ignore", "python3", "-m", "pip", "install"];
        made.push(words(&install, &recipe.pip)?);
    }
    if !recipe.npm.is_empty() {
        made.push(words(&["npm", "install", "-g"], &recipe.npm)?);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_a_short_dockerfile() {
        let text = r#"{"base":"b","apt":["jq"],"pip":["x==1"],"npm":["y"],"commands":["a && b"],"env":{"A":"$x"},
            "files":[{"path":"c/d","content":"$e","mode":"755"}],"workdir":"/w"}"#;
        let recipe: Recipe = serde_json::from_str(text).expect("a recipe");
        let file = recipe.into_file().expect("a file");
        let shown: Vec<&str> = file.stages[0].instructions.iter().map(|step| step.shown.as_str()).collect();
        assert_eq!(file.stages[0].from, "b");
        assert_eq!(
            shown,
            [
                "ENV A",
                "WORKDIR /w",
                "RUN apt-get update",
                "RUN env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends jq",
                "RUN env PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install x==1",
                "RUN npm install -g y",
                "COPY c/d",
                "RUN a && b",
            ]
        );
    }

    #[test]
    fn what_is_no_recipe_is_refused() {
        for text in [r#"{"x":1}"#, r#"{"apt":"jq"}"#, r#"{"files":[{}]}"#] {
            assert!(serde_json::from_str::<Recipe>(text).is_err(), "{text}");
        }
        for text in [
            r#"{"apt":["-o=x"]}"#,
            r#"{"pip":[""]}"#,
            r#"{"commands":[" "]}"#,
            r#"{"files":[{"path":"a/"}]}"#,
            r#"{"files":[{"path":"a","mode":"9"}]}"#,
        ] {
            assert!(serde_json::from_str::<Recipe>(text).expect(text).into_file().is_err(), "{text}");
        }
    }
}

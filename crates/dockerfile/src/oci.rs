//! Reading the configuration that an image came with.

use crate::config::{Command, Config, Healthcheck, default_shell};
use crate::error::ConfigError;
use crate::limits::{CONFIG_MAX, ENVIRONMENT_MAX, PORTS_MAX};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const NANOSECONDS: u64 = 1_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct Raw {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    cmd: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    healthcheck: Option<RawCheck>,
    exposed_ports: Option<BTreeMap<String, IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
    shell: Option<Vec<String>>,
    stop_signal: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawCheck {
    test: Option<Vec<String>>,
    interval: Option<u64>,
    timeout: Option<u64>,
    start_period: Option<u64>,
    start_interval: Option<u64>,
    retries: Option<u32>,
}

/// The whole image configuration, of which one object matters.
#[derive(Deserialize)]
struct Image {
    config: Option<Raw>,
}

impl Config {
    /// From the `config` object of an image's configuration, or from the whole configuration (JSON).
    ///
    /// # Errors
    /// When it is too large, no JSON, or a field is of another type.
    pub fn from_oci(json: &[u8]) -> Result<Self, ConfigError> {
        if json.len() > CONFIG_MAX {
            return Err(ConfigError::Size { size: json.len(), max: CONFIG_MAX });
        }
        let whole: Image = serde_json::from_slice(json).map_err(ConfigError::Json)?;
        let raw = match whole.config {
            Some(raw) => raw,
            None => serde_json::from_slice(json).map_err(ConfigError::Json)?,
        };
        let config = Self::from_raw(raw);
        let bytes: usize = config.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        let problem = match () {
            () if bytes > ENVIRONMENT_MAX => "its environment is too large",
            () if config.exposed.len() > PORTS_MAX => "it has too many ports",
            () if config.workdir.as_ref().is_some_and(|path| !path.starts_with('/')) => "its workdir is not absolute",
            () => return Ok(config),
        };
        Err(ConfigError::Value(problem.into()))
    }

    /// As the `config` object of an image's configuration.
    #[must_use]
    pub fn to_oci(&self) -> Value {
        let mut made = Map::new();
        let mut put = |name: &str, value: Value| {
            let is_empty = match &value {
                Value::Null => true,
                Value::Array(all) => all.is_empty(),
                Value::Object(all) => all.is_empty(),
                _ => false,
            };
            if !is_empty {
                made.insert(name.to_owned(), value);
            }
        };
        put("Env", self.env.iter().map(|(name, value)| format!("{name}={value}")).collect());
        put("WorkingDir", json!(self.workdir));
        put("User", json!(self.user));
        put("Cmd", json!(self.cmd.as_ref().map(|command| &command.argv)));
        put("Entrypoint", json!(self.entrypoint.as_ref().map(|command| &command.argv)));
        put("Labels", json!(self.labels));
        put("StopSignal", json!(self.stop_signal));
        put("Shell", json!(self.shell));
        let port = |port: &u16| (format!("{port}/tcp"), json!({}));
        put("ExposedPorts", Value::Object(self.exposed.iter().map(port).collect()));
        put("Healthcheck", self.healthcheck.as_ref().map_or(Value::Null, check_to_oci));
        Value::Object(made)
    }

    fn from_raw(raw: Raw) -> Self {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let shell = raw.shell.filter(|words| !words.is_empty()).unwrap_or_else(default_shell);
        let exec = |words: Option<Vec<String>>| {
            let argv = words.filter(|words| !words.is_empty())?;
            Some(Command { shell: argv.len() == shell.len() + 1 && argv.starts_with(&shell), argv })
        };
        let pair = |text: String| {
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            (name.to_owned(), value.to_owned())
        };
        let port = |text: &str| text.split('/').next().and_then(|port| port.parse().ok());
        let mut exposed: Vec<u16> =
            raw.exposed_ports.unwrap_or_default().keys().filter_map(|text| port(text)).collect();
        exposed.sort_unstable();
        exposed.dedup();
        Self {
            env: raw.env.unwrap_or_default().into_iter().map(pair).collect(),
            workdir: filled(raw.working_dir),
            user: filled(raw.user),
            cmd: exec(raw.cmd),
            entrypoint: exec(raw.entrypoint),
            healthcheck: raw.healthcheck.and_then(|check| from_check(check, &shell)),
            exposed,
            labels: raw.labels.unwrap_or_default(),
            stop_signal: filled(raw.stop_signal),
            shell,
        }
    }
}

fn check_to_oci(check: &Healthcheck) -> Value {
    let test = match &check.test {
        None => vec!["NONE"],
        Some(test) => std::iter::once("CMD").chain(test.argv.iter().map(String::as_str)).collect(),
    };
    let mut made = Map::from_iter([("Test".to_owned(), json!(test))]);
    for (name, ms) in [
        ("Interval", check.interval_ms),
        ("Timeout", check.timeout_ms),
        ("StartPeriod", check.start_period_ms),
        ("StartInterval", check.start_interval_ms),
    ] {
        if let Some(ms) = ms {
            made.insert(name.to_owned(), json!(ms.saturating_mul(NANOSECONDS)));
        }
    }
    if let Some(retries) = check.retries {
        made.insert("Retries".to_owned(), json!(retries));
    }
    Value::Object(made)
}

/// An empty test inherits, which means none here.
fn from_check(raw: RawCheck, shell: &[String]) -> Option<Healthcheck> {
    let words = raw.test?;
    let (kind, words) = words.split_first()?;
    let test = match kind.as_str() {
        "NONE" => None,
        "CMD" => Some(Command { argv: words.to_vec(), shell: false }),
        "CMD-SHELL" => Some(Command { argv: [shell, words].concat(), shell: true }),
        _ => return None,
    };
    let ms = |value: Option<u64>| value.filter(|value| *value > 0).map(|value| value / NANOSECONDS);
    Some(Healthcheck {
        test,
        interval_ms: ms(raw.interval),
        timeout_ms: ms(raw.timeout),
        start_period_ms: ms(raw.start_period),
        start_interval_ms: ms(raw.start_interval),
        retries: raw.retries.filter(|retries| *retries > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::start_of;

    #[test]
    fn an_images_configuration_is_read() {
        let json =
            br#"{"architecture":"amd64","config":{"Env":["PATH=/bin","A=b=c"],"WorkingDir":"/w","User":"","Cmd":["-x"],
            "Entrypoint":["/bin/sh","-c","run"],"ExposedPorts":{"80/tcp":{},"53/udp":{}},"Labels":null,"Unknown":1,
            "Healthcheck":{"Test":["CMD-SHELL","ok"],"Interval":2000000000,"Retries":2}}}"#;
        let config = Config::from_oci(json).expect("a configuration");
        assert_eq!(config.env["A"], "b=c");
        assert_eq!((config.workdir.as_deref(), config.user.as_deref()), (Some("/w"), None));
        assert_eq!(config.exposed, [53, 80]);
        assert_eq!(config.shell, ["/bin/sh", "-c"]);
        assert!(config.entrypoint.as_ref().is_some_and(|command| command.shell));
        let start = start_of(&config).expect("a start");
        assert_eq!(start.argv, ["/bin/sh", "-c", "run", "-x"]);
        assert_eq!(start.ready.clone().expect("a check"), ["/bin/sh", "-c", "ok"]);
        assert_eq!(start.ready_timeout_ms, Some(4000));
        let again = Config::from_oci(config.to_oci().to_string().as_bytes()).expect("the same");
        assert_eq!(again.to_oci(), config.to_oci());
        assert_eq!(
            (again.env, again.exposed, start_of(&config)),
            (config.env.clone(), config.exposed.clone(), Some(start))
        );
    }

    #[test]
    fn the_object_alone_is_read_too_and_what_is_wrong_is_refused() {
        let config = Config::from_oci(br#"{"Cmd":["sh"],"Healthcheck":{"Test":["NONE"]}}"#).expect("a configuration");
        let start = start_of(&config).expect("a start");
        assert_eq!((start.argv, start.ready), (vec!["sh".into()], None));
        assert_eq!(start_of(&Config::from_oci(b"{}").expect("nothing")), None);
        for wrong in [&b"[]"[..], b"", b"{\"Env\":1}", b"{\"WorkingDir\":\"x\"}", &b"[".repeat(100_000)] {
            assert!(Config::from_oci(wrong).is_err());
        }
    }
}

//! `STATE/settings.toml`: prices and limits, read when the node starts. What it does not say is as documented.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Picodollars of a dollar.
const PICO: f64 = 1e12;
/// Dearer than anything is, so that sums of it still fit.
const PRICE_MAX: f64 = 1e4;
const NAME: &str = "settings.toml";

/// A settings file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not TOML, a key that is none, or a value of another type.
    #[error("{}: {problem}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// With its line.
        problem: String,
    },
    /// A number that cannot be.
    #[error("{}: {key} is {value}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which.
        key: &'static str,
        /// As it stands there.
        value: f64,
        /// What is wrong.
        problem: &'static str,
    },
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PricesText {
    cpu_hour: f64,
    memory_gib_hour: f64,
    snapshot_gb_month: f64,
}

impl Default for PricesText {
    /// The public price list of the service whose clients this node serves.
    fn default() -> Self {
        Self { cpu_hour: 0.025, memory_gib_hour: 0.0075, snapshot_gb_month: 0.08 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsText {
    requests_per_second: u32,
    burst: u32,
    in_flight: u32,
    daily_usd: Option<f64>,
    sandboxes: Option<u32>,
}

impl Default for LimitsText {
    fn default() -> Self {
        Self { requests_per_second: 50, burst: 200, in_flight: 128, daily_usd: None, sandboxes: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NodeText {
    sandboxes: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Text {
    node: NodeText,
    prices: PricesText,
    limits: LimitsText,
}

/// What things cost, in picodollars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// An hour of a processor's time.
    pub cpu_hour: u64,
    /// A GiB of memory for an hour.
    pub memory_gib_hour: u64,
    /// A GB (10⁹ bytes) of a snapshot for 30 days.
    pub snapshot_gb_month: u64,
}

/// What a key may do that says nothing itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests in a second, over time.
    pub requests_per_second: u32,
    /// Requests at once after a silence.
    pub burst: u32,
    /// Requests that are being answered.
    pub in_flight: u32,
    /// Picodollars in 24 hours.
    pub daily: Option<u64>,
    /// Sandboxes that are not stopped.
    pub sandboxes: Option<u32>,
}

/// The whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What things cost.
    pub prices: Prices,
    /// What keys may do.
    pub limits: KeyLimits,
    /// Sandboxes of all at once.
    pub sandboxes: Option<u32>,
}

impl Settings {
    /// Reads the file of a state directory; one that is not there says nothing.
    ///
    /// # Errors
    /// [`SettingsError`] with what is wrong and where.
    pub fn read(state_dir: &Path) -> Result<Self, SettingsError> {
        let path = state_dir.join(NAME);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(SettingsError::Read { path, source }),
        };
        Self::parse(&text, &path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let text: Text = toml::from_str(text)
            .map_err(|error| SettingsError::Text { path: path.to_owned(), problem: error.to_string() })?;
        let wrong = |key, value: f64, problem| SettingsError::Value { path: path.to_owned(), key, value, problem };
        let money = |key, usd: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and PRICE_MAX dollars"
            )]
            let pico = (usd * PICO).round() as u64;
            if (0.0..=PRICE_MAX).contains(&usd) { Ok(pico) } else { Err(wrong(key, usd, "must be 0 to 10000 dollars")) }
        };
        let LimitsText { requests_per_second, burst, in_flight, daily_usd, sandboxes } = text.limits;
        for (key, value) in [
            ("limits.requests_per_second", requests_per_second),
            ("limits.burst", burst),
            ("limits.in_flight", in_flight),
            ("limits.sandboxes", sandboxes.unwrap_or(1)),
            ("node.sandboxes", text.node.sandboxes.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(wrong(key, 0.0, "must be at least 1"));
            }
        }
        let daily = daily_usd.map(|usd| money("limits.daily_usd", usd)).transpose()?;
        Ok(Self {
            prices: Prices {
                cpu_hour: money("prices.cpu_hour", text.prices.cpu_hour)?,
                memory_gib_hour: money("prices.memory_gib_hour", text.prices.memory_gib_hour)?,
                snapshot_gb_month: money("prices.snapshot_gb_month", text.prices.snapshot_gb_month)?,
            },
            limits: KeyLimits { requests_per_second, burst, in_flight, daily, sandboxes },
            sandboxes: text.node.sandboxes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::parse(text, Path::new("settings.toml"))
    }

    #[test]
    fn nothing_said_is_the_public_price_list() {
        let settings = parse("").expect("nothing");
        assert_eq!(settings.prices.cpu_hour, 25_000_000_000);
        assert_eq!(settings.prices.memory_gib_hour, 7_500_000_000);
        assert_eq!((settings.limits.requests_per_second, settings.limits.daily), (50, None));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let text = "[prices]\ncpu_hour = 1.5\n[limits]\ndaily_usd = 2\nsandboxes = 3\n";
        let settings = parse(text).expect("fine");
        assert_eq!((settings.prices.cpu_hour, settings.limits.daily), (1_500_000_000_000, Some(2_000_000_000_000)));
        for (text, words) in [
            ("[prices]\ncpu_hour = -1", "prices.cpu_hour"),
            ("[prices]\ncpu_hour = nan", "prices.cpu_hour"),
            ("[limits]\nburst = 0", "limits.burst"),
            ("[limits]\n\nbrust = 1", "line 3"),
            ("[prices]\ncpu_hour = \"x\"", "line 2"),
            ("x", "line 1"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

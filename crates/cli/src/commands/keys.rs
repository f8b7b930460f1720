//! `keys create | ls | rm`.

use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use crate::text::{age, dollars};
use branchbox_api::KeyRequest;
use branchbox_api::key::DAILY_MICROS_MAX;
use branchbox_model::Timestamp;
use clap::Subcommand;

/// Make and remove keys of a node
#[derive(Debug, Subcommand)]
pub enum KeysVerb {
    /// Make a key and print it, this once
    ///
    /// Example: `branchbox keys create --name laptop > key`
    Create {
        /// What it is for
        #[arg(long)]
        name: String,
        /// What it may spend in 24 hours; the node's settings say it otherwise
        #[arg(long, value_name = "USD", value_parser = micros)]
        daily_limit: Option<u64>,
        /// Sandboxes that it may have at once, stopped ones not counted
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        max_sandboxes: Option<u32>,
    },
    /// List keys, without themselves.
    ///
    /// Example: `branchbox keys ls`
    Ls,
    /// Take keys away; from then on they open nothing.
    ///
    /// Example: `branchbox keys rm laptop`
    Rm {
        /// Each a name or an id
        #[arg(required = true)]
        keys: Vec<String>,
    },
}

impl KeysVerb {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        match self {
            Self::Create { name, daily_limit, max_sandboxes } => {
                create(session, KeyRequest { name, daily_limit_micros: daily_limit, max_sandboxes }).await
            }
            Self::Ls => list(session).await,
            Self::Rm { keys } => Ok(super::each(session, &keys, |text| remove(session, text)).await),
        }
    }
}

/// Dollars as microdollars.
fn micros(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is no amount of dollars from 0 to {}", DAILY_MICROS_MAX / 1_000_000);
    let (whole, part) = text.trim_start_matches('$').split_once('.').unwrap_or((text.trim_start_matches('$'), ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 6 || !is_number(whole) || !is_number(part) {
        return Err(bad());
    }
    let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
    let micros = number(whole)?.checked_mul(1_000_000).ok_or_else(bad)? + number(&format!("{part:0<6}"))?;
    if micros <= DAILY_MICROS_MAX { Ok(micros) } else { Err(bad()) }
}

async fn create(session: &Session, request: KeyRequest) -> Result<Exit, Fault> {
    let made = session.client.create_key(&request).await;
    let made = made.map_err(|error| refused("cannot make a key", error))?;
    match session.form {
        Form::Json => output::json(&made),
        Form::Text => output::data(&format!("{}\n", made.key.unwrap_or_default())),
    }
    Ok(Exit::Done)
}

async fn list(session: &Session) -> Result<Exit, Fault> {
    let keys = session.client.keys().await.map_err(|error| refused("cannot list the keys", error))?;
    if session.form == Form::Json {
        output::json(&serde_json::json!({ "data": keys }));
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["ID", "NAME", "AGE", "USED", "DAILY", "SANDBOXES"]);
    let now = Timestamp::now();
    for key in keys {
        let used = key.used_at.map(|used| age(used, now)).unwrap_or_default();
        let daily = key.daily_limit_micros.map(dollars).unwrap_or_default();
        let sandboxes = key.max_sandboxes.map(|max| max.to_string()).unwrap_or_default();
        table.row(vec![key.id, key.name, age(key.created_at, now), used, daily, sandboxes]);
    }
    output::data(&table.text());
    Ok(Exit::Done)
}

async fn remove(session: &Session, text: String) -> Result<(), Fault> {
    let what = format!("cannot remove key `{text}`");
    let removed = session.client.delete_key(&text).await.map_err(|error| refused(&what, error))?;
    if session.form == Form::Text {
        output::data(&format!("{} deleted\n", removed.id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_exactly() {
        for (text, expected) in [("1", 1_000_000), ("0.25", 250_000), ("$2.5", 2_500_000), ("0", 0), ("0.000001", 1)] {
            assert_eq!(micros(text), Ok(expected), "{text}");
        }
        for text in ["", "-1", "1e3", ".5", "1.0000001", "10001", "nan", "99999999999999999999"] {
            assert!(micros(text).is_err(), "{text}");
        }
    }
}

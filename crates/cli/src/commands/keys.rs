//! `keys create | ls | rm`.

use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use crate::text::age;
use branchbox_api::KeyRequest;
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
            Self::Create { name } => create(session, name).await,
            Self::Ls => list(session).await,
            Self::Rm { keys } => Ok(super::each(session, &keys, |text| remove(session, text)).await),
        }
    }
}

async fn create(session: &Session, name: String) -> Result<Exit, Fault> {
    let made = session.client.create_key(&KeyRequest { name }).await;
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
    let mut table = Table::new(&["ID", "NAME", "AGE", "USED"]);
    let now = Timestamp::now();
    for key in keys {
        let used = key.used_at.map(|used| age(used, now)).unwrap_or_default();
        table.row(vec![key.id, key.name, age(key.created_at, now), used]);
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

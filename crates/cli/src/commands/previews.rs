//! `preview`, `previews`, `unshare`: ports of a sandbox, shared over HTTP.

use super::{sandbox, word};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::table::Table;
use crate::text::seconds;
use branchbox_api::{PreviewRequest, Visibility};
use clap::Args;

/// Share a port of a sandbox over HTTP, and print its address.
///
/// The address holds a token, and whoever has it may visit until the token ends; with --public anybody may.
///
/// Example: `branchbox preview web 8000`
#[derive(Debug, Args)]
pub struct PreviewArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Whoever knows the address may visit, without a token
    #[arg(long)]
    pub public: bool,
    /// How long the token lives: 600, 10m [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "public")]
    pub ttl: Option<u32>,
}

/// List the ports that a sandbox shares.
///
/// Example: `branchbox previews web`
#[derive(Debug, Args)]
pub struct PreviewsArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

/// Share a port of a sandbox no more.
///
/// Example: `branchbox unshare web 8000`
#[derive(Debug, Args)]
pub struct UnshareArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
}

impl PreviewArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot share port {} of sandbox `{}`", self.port, self.sandbox);
        let visibility = Some(if self.public { Visibility::Public } else { Visibility::Private });
        let request =
            PreviewRequest { port: self.port, visibility, ttl_seconds: self.ttl, ..PreviewRequest::default() };
        let preview = session.client.share(&id, &request).await.map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&preview),
            Form::Text => {
                let url = preview.url_with_token.as_ref().unwrap_or(&preview.url);
                output::data(&format!("{}\n", printable(url)));
                if let Some(hint) = &preview.hint {
                    output::note(&format!("hint: {}\n", printable(hint)));
                }
            }
        }
        Ok(Exit::Done)
    }
}

impl PreviewsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot list the shared ports of sandbox `{}`", self.sandbox);
        let list = session.client.previews(&id).await.map_err(|error| refused(&what, error))?;
        if session.form == Form::Json {
            output::json(&list);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["PORT", "FOR", "URL"]);
        for preview in &list.data {
            table.row(vec![preview.port.to_string(), word(preview.visibility), preview.url.clone()]);
        }
        output::data(&table.text());
        if list.data.is_empty() {
            output::note("no shared ports\n");
        }
        Ok(Exit::Done)
    }
}

impl UnshareArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot end the sharing of port {} of sandbox `{}`", self.port, self.sandbox);
        let gone = session.client.unshare(&id, self.port).await.map_err(|error| refused(&what, error))?;
        if session.form == Form::Json {
            output::json(&gone);
        }
        Ok(Exit::Done)
    }
}

//! `network`, `whoami`, `limits`, `usage`.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use crate::text::dollars;
use branchbox_api::{NetworkRequest, NetworkRules};
use clap::Args;
use std::fmt::Write as _;

/// Show a sandbox's network rules, or replace them.
///
/// Example: `branchbox network web --no-internet`
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// Anything may be reached
    #[arg(long, conflicts_with = "no_internet")]
    pub internet: bool,
    /// Nothing may be reached, but for what --allow names
    #[arg(long)]
    pub no_internet: bool,
    /// Only this may be reached; may be repeated
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// This may never be reached; may be repeated
    #[arg(long, value_name = "HOST")]
    pub deny: Vec<String>,
    /// A host and port beside the usual ones; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Vec<String>,
}

impl NetworkArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let lists = [&self.allow, &self.deny, &self.connect];
        let changes = self.internet || self.no_internet || lists.iter().any(|list| !list.is_empty());
        let answered = if changes {
            let internet = !self.no_internet;
            let request = NetworkRequest { internet, allow: self.allow, deny: self.deny, connect: self.connect };
            session.client.set_network(&id, &request).await
        } else {
            session.client.network(&id).await
        };
        let what = format!("cannot use the network rules of sandbox `{}`", self.sandbox);
        let rules = answered.map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&rules),
            Form::Text => output::data(&text(&rules)),
        }
        Ok(Exit::Done)
    }
}

fn text(rules: &NetworkRules) -> String {
    let word = |truth: bool| if truth { "yes" } else { "no" };
    let mut text = format!("internet  {}\nenforced  {}\n", word(rules.internet), word(rules.enforced));
    for (label, list) in [("allow", &rules.allow), ("deny", &rules.deny), ("connect", &rules.connect)] {
        if !list.is_empty() {
            let _ = writeln!(text, "{label:<8}  {}", list.join(", "));
        }
    }
    text
}

/// Shows who this client is to the node.
///
/// # Errors
/// What the node refused.
pub async fn whoami(session: &Session) -> Result<Exit, Fault> {
    let me = session.client.me().await.map_err(|error| refused("cannot ask who this is", error))?;
    match session.form {
        Form::Json => output::json(&me),
        Form::Text => output::data(&format!("{} of {} ({})\n", me.principal_id, me.org_name, me.role)),
    }
    Ok(Exit::Done)
}

/// Shows what may be used, and what is.
///
/// # Errors
/// What the node refused.
pub async fn limits(session: &Session) -> Result<Exit, Fault> {
    let limits = session.client.limits().await.map_err(|error| refused("cannot read the limits", error))?;
    if session.form == Form::Json {
        output::json(&limits);
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["LIMIT", "USED", "MOST"]);
    for limit in &limits.account {
        table.row(vec![limit.label.clone(), limit.used.to_string(), limit.max.to_string()]);
    }
    output::data(&table.text());
    let daily = &limits.daily;
    let most = daily.limit_micros.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {}", dollars(limit)));
    output::data(&format!("\nspent in {}: {}, {most}\n", daily.window, dollars(daily.used_micros)));
    Ok(Exit::Done)
}

/// Shows what was used.
///
/// # Errors
/// What the node refused.
pub async fn usage(session: &Session) -> Result<Exit, Fault> {
    let usage = session.client.usage().await.map_err(|error| refused("cannot read the usage", error))?;
    if session.form == Form::Json {
        output::json(&usage);
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["ID", "NAME", "STATE", "RAN", "CPU", "MEMORY", "COST"]);
    for one in &usage.resources {
        let (ran, cpu) = (format!("{:.1} s", one.running_seconds), format!("{:.1} s", one.active_cpu_seconds));
        let memory = format!("{:.1} GiB·s", one.memory_gib_seconds);
        table.row(vec![
            one.resource_id.clone(),
            one.name.clone().unwrap_or_default(),
            one.state.clone(),
            ran,
            cpu,
            memory,
            dollars(one.charged_micros),
        ]);
    }
    output::data(&table.text());
    Ok(Exit::Done)
}

//! `pause`, `wake`, `restart`, `extend`, `update`: a sandbox's life and settings.

use super::{sandbox, show_state};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::progress::during;
use crate::text::{pair, seconds};
use branchbox_api::{OnTimeout, UpdateRequest, WakeRequest};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;

/// Save a sandbox's memory and processes, and let nothing of it run until it is woken.
///
/// Example: `branchbox pause web`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

/// Let a paused sandbox go on where it was.
///
/// Example: `branchbox wake web`
#[derive(Debug, Args)]
pub struct WakeArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// A new time limit, for one that has a time limit
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub timeout: Option<u32>,
}

/// Boot a stopped sandbox from its disk.
///
/// Example: `branchbox restart web`
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

/// Give a sandbox with a time limit more time.
///
/// Example: `branchbox extend web 600`
#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// How much more, in seconds or with a unit: 600, 10m
    #[arg(value_name = "TIME", value_parser = seconds)]
    pub time: u32,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    fn is_on(self) -> bool {
        self == Self::On
    }
}

/// What happens at the end of a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AtEnd {
    /// Its memory is kept, nothing runs.
    Pause,
    /// Its disk is kept.
    Stop,
    /// All of it goes.
    Delete,
}

impl From<AtEnd> for OnTimeout {
    fn from(end: AtEnd) -> Self {
        match end {
            AtEnd::Pause => Self::Pause,
            AtEnd::Stop => Self::Stop,
            AtEnd::Delete => Self::Delete,
        }
    }
}

/// Change a sandbox's name, labels, variables and settings; what is left out stays.
///
/// Example: `branchbox update web --label task=done --idle-pause 10m`
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// A new name; empty takes the name away
    #[arg(long)]
    pub name: Option<String>,
    /// A label; all labels given replace all there are; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// A variable of later commands; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// A variable that is taken away; may be repeated
    #[arg(long, value_name = "KEY")]
    pub unset_env: Vec<String>,
    /// Pause after this long without use; 0 is never
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub idle_pause: Option<u32>,
    /// Whether a request wakes it when it is paused
    #[arg(long)]
    pub auto_wake: Option<Switch>,
    /// Whether it is never paused for being idle
    #[arg(long)]
    pub persistent: Option<Switch>,
    /// A new time limit from now on; 0 takes it away
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub timeout: Option<u32>,
    /// What happens at its end
    #[arg(long)]
    pub on_timeout: Option<AtEnd>,
}

impl PauseArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot pause sandbox `{}`", self.sandbox);
        show_state(
            session.form,
            &during(session.form, "pausing", session.client.pause(&id)).await.map_err(|error| refused(&what, error))?,
        );
        Ok(Exit::Done)
    }
}

impl WakeArgs {
    /// Runs the command. One that is awake is what was wanted.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot wake sandbox `{}`", self.sandbox);
        let request = WakeRequest { timeout_seconds: self.timeout };
        let info = match during(session.form, "waking", session.client.wake(&id, &request)).await {
            Err(error) if error.code() == Some("not_paused") && self.timeout.is_none() => {
                session.client.get(&id).await.map_err(|error| refused(&what, error))?
            }
            woken => woken.map_err(|error| refused(&what, error))?,
        };
        show_state(session.form, &info);
        Ok(Exit::Done)
    }
}

impl RestartArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot restart sandbox `{}`", self.sandbox);
        show_state(
            session.form,
            &during(session.form, "restarting", session.client.restart(&id))
                .await
                .map_err(|error| refused(&what, error))?,
        );
        Ok(Exit::Done)
    }
}

impl ExtendArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot extend sandbox `{}`", self.sandbox);
        let info = session.client.extend(&id, self.time).await.map_err(|error| refused(&what, error))?;
        show_state(session.form, &info);
        if info.ends_at.is_none() {
            crate::output::note("it has no time limit, so nothing changed\n");
        }
        Ok(Exit::Done)
    }
}

impl UpdateArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot update sandbox `{}`", self.sandbox);
        let set = self.env.into_iter().map(|(name, value)| (name, Some(value)));
        let env: BTreeMap<_, _> = set.chain(self.unset_env.into_iter().map(|name| (name, None))).collect();
        let request = UpdateRequest {
            name: self.name.map(|name| (!name.is_empty()).then_some(name)),
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            env: (!env.is_empty()).then_some(env),
            auto_wake: self.auto_wake.map(Switch::is_on),
            user: None,
            idle_pause_seconds: self.idle_pause,
            persistent: self.persistent.map(Switch::is_on),
            timeout_seconds: self.timeout,
            on_timeout: self.on_timeout.map(Into::into),
        };
        if request == UpdateRequest::default() {
            return Err(Fault::usage("nothing to change was given").hint("see what there is: branchbox update --help"));
        }
        show_state(session.form, &session.client.update(&id, &request).await.map_err(|error| refused(&what, error))?);
        Ok(Exit::Done)
    }
}

//! `create`: starts a sandbox.

use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::resolve;
use crate::text::{mebibytes, pair};
use branchbox_api::{CreateRequest, NetworkRequest};
use branchbox_client::Wait;
use clap::Args;

/// Start a sandbox and print its id.
///
/// Without `--image` or `--snapshot` it runs on this machine's own tools, read-only, with fresh files above them.
///
/// Example: `branchbox create --name web --label task=fix-1`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// A name, unique among sandboxes that run
    #[arg(long)]
    pub name: Option<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// A variable of every command in it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Processors
    #[arg(long)]
    pub vcpu: Option<u32>,
    /// Memory in MiB, or with a unit: 512M, 2G
    #[arg(long, value_parser = mebibytes)]
    pub memory: Option<u32>,
    /// Disk in MiB, or with a unit
    #[arg(long, value_parser = mebibytes)]
    pub disk: Option<u32>,
    /// What to start from
    #[arg(long, conflicts_with = "snapshot")]
    pub image: Option<String>,
    /// A snapshot to start from: id, name, or at least 6 characters an id begins with
    #[arg(long, value_name = "ID")]
    pub snapshot: Option<String>,
    /// Answer the sandbox that has the name already, if one has
    #[arg(long, requires = "name")]
    pub get_or_create: bool,
    /// Print the id at once, without waiting until it runs
    #[arg(long)]
    pub no_wait: bool,
    /// No way out of the sandbox (as it is anyway while this node has no gateway)
    #[arg(long)]
    pub no_internet: bool,
}

impl CreateArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let no_internet = NetworkRequest { internet: false, ..NetworkRequest::default() };
        let snapshot = match &self.snapshot {
            Some(text) => Some(resolve::snapshot(&session.client, text).await?),
            None => None,
        };
        let wait = if self.no_wait { Wait::No } else { Wait::UntilReady };
        let request = CreateRequest {
            name: self.name,
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            get_or_create: self.get_or_create,
            snapshot,
            image: self.image,
            vcpu: self.vcpu,
            memory_mib: self.memory,
            disk_mib: self.disk,
            env: (!self.env.is_empty()).then(|| self.env.into_iter().collect()),
            network: self.no_internet.then_some(no_internet),
            ..CreateRequest::default()
        };
        let made =
            session.client.create(&request, wait).await.map_err(|error| refused("cannot create a sandbox", error))?;
        match session.form {
            Form::Json => output::json(&made),
            Form::Text => output::data(&format!("{}\n", made.id)),
        }
        Ok(Exit::Done)
    }
}

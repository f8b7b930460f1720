//! `create`: starts a sandbox.

use super::life::AtEnd;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::progress::during;
use crate::resolve;
use crate::text::{mebibytes, pair, seconds};
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
    /// Only this may be reached; may be repeated
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// This may never be reached; may be repeated
    #[arg(long, value_name = "HOST")]
    pub deny: Vec<String>,
    /// A host and port beside the usual ones; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Vec<String>,
    /// How processors are given: shared is all there is
    #[arg(long, value_parser = ["shared"])]
    pub cpu: Option<String>,
    /// Thousandths of a processor that it gets in any case
    #[arg(long, value_name = "MILLIS")]
    pub cpu_floor: Option<u32>,
    /// A time limit in seconds, or with a unit: 90, 5m, 2h
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub timeout: Option<u32>,
    /// What happens at its end [default: pause]
    #[arg(long)]
    pub on_timeout: Option<AtEnd>,
    /// Pause after this long without use; 0 is never [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub idle_pause: Option<u32>,
    /// Requests do not wake it when it is paused
    #[arg(long)]
    pub no_auto_wake: bool,
    /// Never pause it for being idle
    #[arg(long)]
    pub persistent: bool,
    /// Taken and without effect: sandboxes of this machine cost nothing
    #[arg(long, value_name = "MICROS", hide = true)]
    pub max_cost: Option<u64>,
    /// Taken and without effect: sandboxes of this machine cost nothing
    #[arg(long, value_name = "MICROS", hide = true)]
    pub max_total_cost: Option<u64>,
}

impl CreateArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let wait = if self.no_wait { Wait::No } else { Wait::UntilReady };
        let request = self.request(session).await?;
        let made = during(session.form, "starting a sandbox", session.client.create(&request, wait))
            .await
            .map_err(|error| refused("cannot create a sandbox", error))?;
        match session.form {
            Form::Json => output::json(&made),
            Form::Text => output::data(&format!("{}\n", made.id)),
        }
        Ok(Exit::Done)
    }

    /// What is asked of the node.
    ///
    /// # Errors
    /// No such snapshot.
    pub async fn request(self, session: &Session) -> Result<CreateRequest, Fault> {
        let lists = [&self.allow, &self.deny, &self.connect];
        let has_rules = self.no_internet || lists.iter().any(|list| !list.is_empty());
        let network = has_rules.then_some(NetworkRequest {
            internet: !self.no_internet,
            allow: self.allow,
            deny: self.deny,
            connect: self.connect,
        });
        let snapshot = match &self.snapshot {
            Some(text) => Some(resolve::snapshot(&session.client, text).await?),
            None => None,
        };
        Ok(CreateRequest {
            name: self.name,
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            get_or_create: self.get_or_create,
            snapshot,
            image: self.image,
            vcpu: self.vcpu,
            memory_mib: self.memory,
            disk_mib: self.disk,
            env: (!self.env.is_empty()).then(|| self.env.into_iter().collect()),
            network,
            cpu_floor_millis: self.cpu_floor,
            timeout_seconds: self.timeout,
            on_lease_end: self.on_timeout.map(Into::into),
            idle_pause_seconds: self.idle_pause,
            auto_wake: self.no_auto_wake.then_some(false),
            persistent: self.persistent.then_some(true),
            ..CreateRequest::default()
        })
    }
}

//! The words of the command line. Help is these comments.

use crate::commands;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// An undo button for agents: fork a live machine, try a step in the copy, keep it or throw it away.
#[derive(Debug, Parser)]
#[command(name = "branchbox", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 your or the sandbox's failure, 2 usage, 3 cannot run here or no node answers, \
    70 internal. `exec` ends as its command does: its code, 128+n for signal n, 124 for a time limit, 125 when it could \
    not start."
)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Every command")]
pub struct Global {
    /// Address of a node [default: $BRANCHBOX_API_URL, $RUNTIME_API_URL, the socket in the state directory]
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// File that holds the key [default: $BRANCHBOX_API_KEY, $RUNTIME_API_KEY, STATE/admin.key]
    #[arg(long, global = true, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Where a node keeps everything [default: $BRANCHBOX_STATE_DIR, /var/lib/branchbox]
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Print one JSON value instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// Every command; help is on each one's own arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    Try(crate::attempt::TryArgs),
    Serve(commands::serve::ServeArgs),
    /// Say what this machine can do, and what it lacks.
    ///
    /// Example: `branchbox doctor`
    Doctor,
    Completions(commands::manual::CompletionsArgs),
    Man(commands::manual::ManArgs),
    /// Show who this client is to the node.
    ///
    /// Example: `branchbox whoami`
    Whoami,
    /// Show what may be used, and what is.
    ///
    /// Example: `branchbox limits`
    Limits,
    /// Show what was used.
    ///
    /// Example: `branchbox usage --json`
    Usage,
    Events(commands::history::EventsArgs),
    Audit(commands::history::AuditArgs),
    /// A verb on sandboxes, said flat.
    #[command(flatten)]
    Sandbox(SandboxVerb),
    #[command(subcommand, alias = "image")]
    Images(commands::images::ImagesVerb),
    #[command(subcommand)]
    Keys(commands::keys::KeysVerb),
    /// List and keep snapshots
    #[command(subcommand)]
    Snapshots(commands::snapshots::SnapshotsVerb),
    /// The same verbs on sandboxes, as in scripts for the Runtime command line
    #[command(subcommand, hide = true, alias = "sandbox")]
    Sandboxes(SandboxVerb),
}

/// Verbs on sandboxes; help is on each one's own arguments.
#[derive(Debug, Subcommand)]
pub enum SandboxVerb {
    Create(commands::create::CreateArgs),
    Exec(commands::exec::ExecArgs),
    Ls(commands::ls::LsArgs),
    Get(commands::get::GetArgs),
    Fork(commands::fork::ForkArgs),
    Snapshot(commands::snapshot::SnapshotArgs),
    Rm(commands::rm::RmArgs),
    Stop(commands::stop::StopArgs),
    Pause(commands::life::PauseArgs),
    Wake(commands::life::WakeArgs),
    Restart(commands::life::RestartArgs),
    Extend(commands::life::ExtendArgs),
    Update(commands::life::UpdateArgs),
    Network(commands::account::NetworkArgs),
    Run(commands::run::RunArgs),
    Spawn(commands::processes::SpawnArgs),
    Ps(commands::processes::PsArgs),
    Logs(commands::processes::LogsArgs),
    Kill(commands::processes::KillArgs),
    Cp(commands::files::CpArgs),
    Cat(commands::files::CatArgs),
    Files(commands::files::FilesArgs),
    Preview(commands::previews::PreviewArgs),
    Previews(commands::previews::PreviewsArgs),
    Unshare(commands::previews::UnshareArgs),
    RunCode(commands::code::RunCodeArgs),
    Metrics(commands::metrics::MetricsArgs),
    Shell(commands::shell::ShellArgs),
    PortForward(commands::forward::PortForwardArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words.split_whitespace())
    }

    #[test]
    fn the_words_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_spine_parses() {
        for words in [
            "branchbox try -- make test",
            "branchbox try --verify true --yes --mask *.env --mask secrets -- make test",
            "branchbox serve --listen 127.0.0.1:7070 --state-dir /tmp/s --end-sandboxes",
            "branchbox doctor --json",
            "branchbox create --name web --label a=b --env K=V --vcpu 1 --memory 512 --disk 2G",
            "branchbox create --snapshot s",
            "branchbox exec web --cwd /tmp --env A=B --timeout 5m -- ls -l",
            "branchbox ls --all --label a=b --state running",
            "branchbox get web",
            "branchbox fork web --count 16 --name copy --keep-snapshot",
            "branchbox snapshot web --name ready --retention 30",
            "branchbox snapshots ls --sandbox web",
            "branchbox snapshots get s",
            "branchbox snapshots update s --name n --label a=b",
            "branchbox snapshots extend s 30",
            "branchbox snapshots rm s t",
            "branchbox rm --all --snapshots",
            "branchbox rm a b",
            "branchbox stop web",
            "branchbox sandboxes fork web",
            "branchbox sandbox fork web",
            "branchbox pause web",
            "branchbox wake web --timeout 10m",
            "branchbox restart web",
            "branchbox extend web 600",
            "branchbox update web --name n --label a=b --env K=V --unset-env L --idle-pause 5m --auto-wake off --persistent on",
            "branchbox network web --no-internet",
            "branchbox run --keep --memory 1G -- true",
            "branchbox sandboxes create --name w --cpu shared --cpu-floor 50 --timeout 10m --on-timeout stop --no-wait \
             --no-internet --idle-pause 60 --no-auto-wake --persistent --max-cost 1 --max-total-cost 2",
            "branchbox spawn web --cwd /tmp -- sleep 1",
            "branchbox ps web",
            "branchbox logs web p1 -f",
            "branchbox kill web p1 --signal SIGKILL",
            "branchbox cp a web:/b",
            "branchbox cat web /a",
            "branchbox files web /a --depth 2 --glob *.py",
            "branchbox preview web 8000 --ttl 10m",
            "branchbox preview web 8000 --public",
            "branchbox previews web",
            "branchbox unshare web 8000",
            "branchbox run-code web x --language python --context c --timeout 5m",
            "branchbox shell web --command top --root",
            "branchbox shell web --process p1",
            "branchbox port-forward web 8080:80",
            "branchbox spawn web --pty -- bash",
            "branchbox events --sandbox web --type sandbox.paused --limit 5",
            "branchbox audit --action sandbox.deleted",
            "branchbox metrics web --range 15m",
            "branchbox whoami",
            "branchbox keys create --name laptop",
            "branchbox keys ls",
            "branchbox keys rm laptop",
            "branchbox completions bash",
            "branchbox --url http://127.0.0.1:7070 --key-file /k ls",
        ] {
            assert!(parse(words).is_ok(), "{words}: {}", parse(words).expect_err("checked"));
        }
    }

    #[test]
    fn nonsense_is_usage() {
        for words in [
            "branchbox",
            "branchbox frobnicate",
            "branchbox create --image a --snapshot b",
            "branchbox create --label x",
            "branchbox fork web --count 0",
            "branchbox rm",
            "branchbox try",
            "branchbox try --online --allow h -- true",
            "branchbox exec web",
            "branchbox update web --auto-wake perhaps",
            "branchbox network web --internet --no-internet",
            "branchbox ls --key secret",
            "branchbox preview web 0",
            "branchbox preview web 80 --public --ttl 60",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn a_steps_own_flags_are_its_own() {
        let cli = parse("branchbox try -- grep --json -r x").expect("parses");
        assert!(!cli.global.json);
        let Command::Try(args) = cli.command else { panic!("not try") };
        assert_eq!(args.step, ["grep", "--json", "-r", "x"]);
    }
}

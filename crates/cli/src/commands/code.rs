//! `run-code`: one cell in a sandbox's interpreter, whose state stays for the next.

use super::exec::piped_input;
use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::text::millis;
use branchbox_api::{CellStatus, Execution};
use branchbox_client::Cell;
use clap::Args;

/// Run a piece of code in a sandbox's interpreter; what it defines stays for the next piece.
///
/// The code is an argument or piped in. Ends with 0, with 1 when the code failed, with 124 at the time limit.
///
/// Example: `branchbox run-code web 'x = 6 * 7; x'`
#[derive(Debug, Args)]
pub struct RunCodeArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The code [default: what is piped in]
    pub code: Option<String>,
    /// Its language: python, javascript, bash [default: the context's]
    #[arg(long)]
    pub language: Option<String>,
    /// The context it runs in [default: the language's own]
    #[arg(long)]
    pub context: Option<String>,
    /// Time limit in seconds, or with a unit: 500ms, 5m [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub timeout: Option<u64>,
}

impl RunCodeArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused, and no code at all.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let code = match self.code {
            Some(code) => code,
            None => piped_code()?,
        };
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot run code in sandbox `{}`", self.sandbox);
        let cell = Cell { code, language: self.language, context: self.context, timeout_ms: self.timeout };
        let ran = session.client.run_cell(&id, &cell).await.map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&ran),
            Form::Text => show(&ran),
        }
        Ok(match ran.status {
            CellStatus::Ok if ran.lost_bytes == 0 => Exit::Done,
            CellStatus::Timeout => Exit::TimedOut,
            _ => Exit::Failed,
        })
    }
}

fn piped_code() -> Result<String, Fault> {
    let bytes = piped_input()?.ok_or_else(|| {
        Fault::usage("no code was given")
            .hint("say it behind the sandbox, or pipe it in: branchbox run-code web < file")
    })?;
    String::from_utf8(bytes).map_err(|error| Fault::usage("the code is no UTF-8").because(&error))
}

fn show(ran: &Execution) {
    output::raw(false, ran.stdout.as_bytes());
    output::raw(true, ran.stderr.as_bytes());
    for result in &ran.results {
        if let Some(text) = result.data.get("text/plain").and_then(|text| text.as_str()) {
            output::raw(false, format!("{}\n", text.trim_end_matches('\n')).as_bytes());
        } else {
            let kinds: Vec<_> = result.data.keys().map(|kind| printable(kind)).collect();
            output::note(&format!("note: a result without text ({}): see it with --json\n", kinds.join(", ")));
        }
    }
    if let Some(error) = &ran.error {
        if error.traceback.is_empty() {
            output::note(&format!("{}: {}\n", printable(&error.name), printable(&error.value)));
        }
        for line in error.traceback.iter().flat_map(|part| part.lines()) {
            output::note(&format!("{}\n", printable(line)));
        }
    }
    if ran.lost_bytes > 0 {
        output::note(&format!("note: {} bytes of output were lost\n", ran.lost_bytes));
    }
}

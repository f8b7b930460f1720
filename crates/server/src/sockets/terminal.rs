//! The terminal: bytes both ways as binary messages, sizes and the end as text.
//!
//! Closing the socket leaves the process running, as hanging up leaves a command: it is in the list of processes, and
//! whoever opens a terminal with its id gets what is kept of its output and goes on. To end it, end its program or send a
//! signal. A process that is sat down at with the size that clients send when they have none (80 by 24) keeps its own.

use super::{CLOSE_AWAY, CLOSE_FAILED, CLOSE_NORMAL, Place, Sink, closed, closing, fail, going_down, last_words, said};
use crate::answer::{Answered, Failure};
use crate::app::{App, Asked};
use crate::query::Query;
use axum::extract::ws::{Message, WebSocket};
use branchbox_api::{ErrorInfo, ExecRequest, Issues, PTY_SIDE, PtySize, SocketEvent, parse_resize};
use branchbox_node::{Keyboard, Node, NodeError, Said, Screen};
use bytes::Bytes;
use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Map, Value, json};

/// Terminals of one sandbox.
pub(crate) const OF_SANDBOX_MAX: usize = 12;
/// Terminals of a node.
pub(crate) const OF_NODE_MAX: usize = 64;
/// The size of a terminal when the request does not say.
const SIZE_DEFAULT: PtySize = PtySize { cols: 80, rows: 24 };
/// What runs in a terminal when the request does not say.
const SHELL: [&str; 2] = ["bash", "-l"];

/// What a terminal is opened with.
struct Wanted {
    process: Option<String>,
    request: ExecRequest,
    /// Nobody said what is to run.
    is_shell: bool,
}

/// Opens a terminal.
pub(crate) fn open(app: &App, id: &str, asked: Asked) -> Answered {
    let place = app.terminals.take(id)?;
    let (node, id) = (app.node.clone(), id.to_owned());
    let wanted = read(asked.query);
    super::serve(asked.upgrade, move |socket| run(node, id, socket, wanted, place))
}

fn read(mut query: Query) -> Result<Wanted, Failure> {
    let mut side = |name, default: u16| {
        let range = u64::from(*PTY_SIDE.start())..=u64::from(*PTY_SIDE.end());
        query.number(name, range).and_then(|number| u16::try_from(number).ok()).unwrap_or(default)
    };
    let size = PtySize { cols: side("cols", SIZE_DEFAULT.cols), rows: side("rows", SIZE_DEFAULT.rows) };
    let text = |name| query.text(name).filter(|text| !text.is_empty());
    let (command, cwd, user, process) = (text("command"), text("cwd"), text("user"), text("processId"));
    query.finish()?;
    if process.is_some() && (command.is_some() || cwd.is_some() || user.is_some()) {
        return Err(Issues::one("processId", "goes with a size and nothing else").into());
    }
    // Checked as the body of a process to start is: it is one.
    let (mut body, is_shell) = (Map::new(), command.is_none());
    match command {
        Some(command) => body.insert("command".into(), Value::String(command)),
        None => body.insert("argv".into(), json!(SHELL)),
    };
    for (name, value) in [("cwd", cwd), ("user", user)] {
        if let Some(value) = value {
            body.insert(name.into(), Value::String(value));
        }
    }
    let mut request = ExecRequest::parse_process(Value::Object(body).to_string().as_bytes())?;
    request.pty = Some(size).filter(|size| process.is_none() || *size != SIZE_DEFAULT);
    Ok(Wanted { process, request, is_shell })
}

async fn run(node: Node, id: String, socket: WebSocket, wanted: Result<Wanted, Failure>, _place: Place) {
    let (mut sink, source) = socket.split();
    let (screen, keyboard) = match begin(&node, &id, wanted).await {
        Ok(both) => both,
        Err(error) => return fail(&mut sink, error, CLOSE_FAILED).await,
    };
    let ready = said(&SocketEvent::Ready { process_id: Some(screen.process_id()) });
    if sink.send(ready).await.is_err() {
        return;
    }
    let node_closes = closing(&node);
    let (mut typing, mut shown) = (tokio::spawn(type_all(source, keyboard)), Box::pin(show(screen, &mut sink)));
    let end = tokio::select! {
        shown = &mut shown => shown,
        typed = &mut typing => match typed {
            Ok(Err(error)) => End::Failed(error),
            _ => End::Gone,
        },
        () = node_closes => End::Closing,
    };
    drop(shown);
    typing.abort();
    match end {
        End::Gone => {}
        End::Exit(exit_code) => {
            last_words(
                &mut sink,
                said(&SocketEvent::Exit { exit_code }),
                closed(CLOSE_NORMAL, "the process has ended"),
            )
            .await;
        }
        End::Failed(error) => fail(&mut sink, error, CLOSE_FAILED).await,
        End::Closing => fail(&mut sink, going_down(), CLOSE_AWAY).await,
    }
}

async fn begin(node: &Node, id: &str, wanted: Result<Wanted, Failure>) -> Result<(Screen, Keyboard), ErrorInfo> {
    let Wanted { process, mut request, is_shell } = wanted.map_err(|failure| *failure.0)?;
    if is_shell {
        request.argv = Some(node.login_shell(id).map_err(told)?);
    }
    node.terminal(id, process.as_deref(), request).await.map_err(told)
}

fn told(error: NodeError) -> ErrorInfo {
    *Failure::from(error).0
}

/// How a terminal's socket ends.
enum End {
    /// The client went away.
    Gone,
    /// The process has ended.
    Exit(Option<i32>),
    /// Something failed.
    Failed(ErrorInfo),
    /// The node goes down.
    Closing,
}

/// Shows what the terminal says until it has ended. A client that does not take it holds the program back.
async fn show(mut screen: Screen, sink: &mut Sink) -> End {
    loop {
        let message = match screen.next().await {
            Ok(Said::Exit(exit_code)) => return End::Exit(exit_code),
            Ok(Said::Bytes(bytes)) if bytes.is_empty() => Message::Ping(Bytes::new()),
            Ok(Said::Bytes(bytes)) => Message::Binary(bytes.into()),
            Err(error) => return End::Failed(told(error)),
        };
        if sink.send(message).await.is_err() {
            return End::Gone;
        }
    }
}

/// Types what the client sends until it goes away.
async fn type_all(mut source: SplitStream<WebSocket>, keyboard: Keyboard) -> Result<(), ErrorInfo> {
    while let Some(Ok(message)) = source.next().await {
        match message {
            Message::Binary(bytes) => keyboard.type_in(&bytes).await.map_err(told)?,
            Message::Text(text) => {
                let size = parse_resize(text.as_bytes()).map_err(|issues| *Failure::from(issues).0)?;
                keyboard.resize(size).await.map_err(told)?;
            }
            Message::Close(_) => return Ok(()),
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(query: &str) -> Result<Wanted, Vec<String>> {
        let issues = |failure: Failure| vec![failure.0.code];
        read(Query::parse(Some(query)).map_err(|_| vec![])?).map_err(issues)
    }

    #[test]
    fn a_shell_runs_unless_something_else_is_asked_for() {
        let shell = wanted("cols=100&rows=30").expect("a terminal").request;
        assert!(wanted("").expect("a terminal").is_shell);
        assert_eq!(shell.pty, Some(PtySize { cols: 100, rows: 30 }));
        let python = wanted("command=python3%20-i&cwd=%2Ftmp&user=root").expect("a terminal");
        assert!(!python.is_shell);
        let python = python.request;
        assert_eq!((python.command.as_deref(), python.cwd.as_deref()), (Some("python3 -i"), Some("/tmp")));
        assert_eq!(python.pty, Some(SIZE_DEFAULT));
    }

    #[test]
    fn who_sits_down_without_a_size_changes_none() {
        let size = |query| wanted(query).expect("a terminal").request.pty;
        assert_eq!(size("processId=p1&cols=80&rows=24"), None);
        assert_eq!(size("processId=p1&cols=81&rows=24"), Some(PtySize { cols: 81, rows: 24 }));
        for bad in ["processId=p1&command=ls", "cols=0", "rows=4097", "user=nobody", "cwd=here"] {
            assert_eq!(wanted(bad).err(), Some(vec!["invalid_request".to_owned()]), "{bad}");
        }
    }
}

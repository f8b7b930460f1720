//! Requests about the interpreter.

use crate::answer::{Answer, Answered, Failure};
use crate::app::Asked;
use crate::stream;
use branchbox_api::{ContextRequest, DeletedContext, Empty, Interrupted, List, RunRequest};
use branchbox_model::Code;
use branchbox_node::Node;

pub(crate) async fn run(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = RunRequest::parse(&asked.body)?;
    let (is_stream, interrupt) = (request.stream, request.interrupt_on_disconnect);
    let cell = node.run_cell(id, request).await?;
    if is_stream {
        return Ok(Answer::Lines { body: stream::cell(cell, interrupt, node.closing()) });
    }
    Answer::ok(&cell.finish().await?)
}

pub(crate) async fn list(node: &Node, id: &str) -> Answered {
    Answer::ok(&List { data: node.contexts(id).await? })
}

pub(crate) async fn create(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::created(&node.create_context(id, ContextRequest::parse(&asked.body)?).await?)
}

pub(crate) async fn restart(node: &Node, id: &str, context: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&node.restart_context(id, context).await?)
}

pub(crate) async fn interrupt(node: &Node, id: &str, context: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&Interrupted { interrupted: node.interrupt_context(id, context).await? })
}

pub(crate) async fn delete(node: &Node, id: &str, context: &str) -> Answered {
    Answer::ok(&DeletedContext { deleted: node.delete_context(id, context).await? })
}

/// Results travel with their cell here, so none is ever kept in a file.
pub(crate) fn result() -> Answered {
    Err(Failure::new(Code::NotFound, "no such result", "results are in the answer of the cell"))
}

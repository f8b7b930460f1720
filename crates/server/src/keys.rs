//! Requests about keys, for the admin and the owner alone.

use crate::answer::{Answer, Answered, Failure};
use crate::app::Asked;
use branchbox_api::{KeyRequest, List};
use branchbox_model::Code;
use branchbox_node::{Caller, Node};

fn check(caller: &Caller) -> Result<(), Failure> {
    match caller {
        Caller::Owner | Caller::Admin => Ok(()),
        Caller::Key { .. } => Err(Failure::new(
            Code::Forbidden,
            "keys are made and removed with the admin key alone",
            "use the key in admin.key of the node's state directory, or the node's own socket",
        )),
    }
}

pub(crate) async fn create(node: &Node, asked: &Asked) -> Answered {
    check(&asked.caller)?;
    Answer::created(&node.create_key(KeyRequest::parse(&asked.body)?).await?)
}

pub(crate) fn list(node: &Node, asked: &Asked) -> Answered {
    check(&asked.caller)?;
    Answer::ok(&List { data: node.keys() })
}

pub(crate) async fn delete(node: &Node, id: &str, asked: &Asked) -> Answered {
    check(&asked.caller)?;
    Answer::ok(&node.delete_key(id).await?)
}

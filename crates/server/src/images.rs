//! Requests about images.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use crate::stream;
use branchbox_api::image::{ChunkKept, Missing, MissingRequest, TagRequest, is_digest};
use branchbox_api::{Empty, ImageRequest, Issues};
use branchbox_model::SandboxId;
use branchbox_node::Node;

pub(crate) fn list(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let state = query.text("state").and_then(|text| query.word("state", &text));
    let (name, after) = (query.text("name"), query.id::<SandboxId>("cursor").map(|id| id.to_string()));
    let limit = query.page();
    query.finish()?;
    Answer::ok(&node.images(name.as_deref(), state, limit, after.as_deref()))
}

pub(crate) fn get(node: &Node, id: &str) -> Answered {
    Answer::ok(&node.image(id)?)
}

pub(crate) fn resolve(node: &Node, asked: &Asked) -> Answered {
    let text = asked.query.text("ref").ok_or_else(|| Issues::one("ref", "is required"))?;
    Answer::ok(&node.image(&text)?)
}

pub(crate) async fn create(node: &Node, asked: &Asked) -> Answered {
    Answer::created(&node.create_image(ImageRequest::parse(&asked.body)?).await?)
}

pub(crate) async fn missing(node: &Node, asked: &Asked) -> Answered {
    let missing = node.missing_chunks(MissingRequest::parse(&asked.body)?.digests).await?;
    Answer::ok(&Missing { missing })
}

pub(crate) async fn put_chunk(node: &Node, digest: String, asked: &Asked) -> Answered {
    if !is_digest(&digest) {
        return Err(Issues::one("digest", "64 lower-case hexadecimal digits").into());
    }
    node.put_chunk(digest.clone(), asked.body.to_vec()).await?;
    Answer::ok(&ChunkKept { sha256: digest })
}

pub(crate) async fn log(node: &Node, id: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let after = query.number("after", 0..=u64::MAX).unwrap_or(0);
    let is_followed = query.truth("follow");
    query.finish()?;
    if !is_followed {
        return Answer::ok(&node.image_log(id, after)?);
    }
    let image = node.image(id)?;
    Ok(Answer::Lines { body: stream::image_log(node.clone(), image.id, after) })
}

pub(crate) async fn tag(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::ok(&node.tag_image(id, TagRequest::parse(&asked.body)?.tag).await?)
}

pub(crate) async fn untag(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::ok(&node.untag_image(id, &TagRequest::parse(&asked.body)?.tag).await?)
}

pub(crate) async fn delete(node: &Node, id: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&node.delete_image(id).await?)
}

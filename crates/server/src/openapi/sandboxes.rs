//! Sandboxes, snapshots and images, described.

use super::operation::{Content, Operation, Param, delete, get, number, of, post, put, text, truth, word};
use super::{cursor, page, wait};
use branchbox_api::image::{CHUNK_BYTES_MAX, ChunkKept, LogEvent, LogPage, Missing, MissingRequest, TagRequest};
use branchbox_api::{
    CreateRequest, DeletedSandbox, Empty, ExtendRequest, ExtendSnapshotRequest, ForkAnswer, ForkRequest, ImageInfo,
    ImageRequest, ImageState, NetworkRequest, NetworkRules, Page, RetentionRequest, SandboxInfo, SnapshotInfo,
    SnapshotRequest, UpdateRequest, UpdateSnapshotRequest, WakeRequest,
};
use branchbox_model::{SandboxState, SnapshotState};

pub(super) fn operations() -> Vec<Operation> {
    [sandboxes(), life(), snapshots(), images()].concat()
}

fn sandboxes() -> Vec<Operation> {
    let states = word::<SandboxState>("state", "Only those in one of these states.").many();
    let labels = text("label", "Only those with this label, as `key:value`.").many();
    let stopped = truth("includeStopped", "Stopped ones too.");
    let named = text("name", "Only the one of this name.");
    vec![
        get("/v1/sandboxes", "listSandboxes", "List sandboxes, newest first.")
            .with([states, labels, stopped, named, cursor(), page()])
            .answers::<Page<SandboxInfo>>(200),
        post("/v1/sandboxes", "createSandbox", "Start a sandbox, from an image or a snapshot.")
            .with([wait()])
            .takes("CreateRequest", CreateRequest::read)
            .answers::<SandboxInfo>(201)
            .fails(&[404, 501]),
        get("/v1/sandboxes/{sandbox}", "getSandbox", "Look at a sandbox, or wait until it is in a state.")
            .with([word::<SandboxState>("waitFor", "Answer when it is in this state."), wait_seconds()])
            .answers::<SandboxInfo>(200),
        delete("/v1/sandboxes/{sandbox}", "deleteSandbox", "Remove a sandbox with all that is in it.")
            .answers::<DeletedSandbox>(200),
        post("/v1/sandboxes/{sandbox}:update", "updateSandbox", "Change what is left of its settings; the rest stays.")
            .takes("UpdateRequest", UpdateRequest::read)
            .answers::<SandboxInfo>(200)
            .fails(&[501]),
        get("/v1/sandboxes/{sandbox}/network", "getNetwork", "The network rules in force.")
            .answers::<NetworkRules>(200),
        put("/v1/sandboxes/{sandbox}/network", "setNetwork", "Replace the network rules.")
            .takes("NetworkRequest", NetworkRequest::read)
            .answers::<NetworkRules>(200)
            .fails(&[501]),
    ]
}

fn wait_seconds() -> Param {
    number(
        "timeoutSeconds",
        0..=u64::MAX,
        "How long to wait at most; the server has a limit of its own below two minutes.",
    )
}

fn life() -> Vec<Operation> {
    let verb = |verb: &str, id, summary| post(&format!("/v1/sandboxes/{{sandbox}}:{verb}"), id, summary);
    vec![
        verb("fork", "forkSandbox", "Copy a running sandbox: files, memory and processes.")
            .with([wait()])
            .takes("ForkRequest", ForkRequest::read)
            .answers::<ForkAnswer>(201)
            .fails(&[501]),
        verb("snapshot", "snapshotSandbox", "Keep a sandbox as it is now, to start others from.")
            .with([wait()])
            .takes("SnapshotRequest", SnapshotRequest::read)
            .answers::<SnapshotInfo>(201)
            .fails(&[501]),
        verb("pause", "pauseSandbox", "Put a sandbox to sleep; memory and processes are kept.")
            .with([wait()])
            .takes("EmptyRequest", Empty::read)
            .answers::<SandboxInfo>(200)
            .fails(&[501]),
        verb("wake", "wakeSandbox", "Let a paused sandbox run on.")
            .with([wait()])
            .takes("WakeRequest", WakeRequest::read)
            .answers::<SandboxInfo>(200)
            .fails(&[501]),
        verb("stop", "stopSandbox", "End all that runs; the disk is kept.")
            .takes("EmptyRequest", Empty::read)
            .answers::<SandboxInfo>(200),
        verb("restart", "restartSandbox", "Start a stopped sandbox on its disk.")
            .with([wait()])
            .takes("EmptyRequest", Empty::read)
            .answers::<SandboxInfo>(200),
        verb("extend", "extendSandbox", "Move the end of its time limit.")
            .takes("ExtendRequest", ExtendRequest::read)
            .answers::<SandboxInfo>(200),
        verb("retention", "setRetention", "Say how long it is kept while paused.")
            .takes("RetentionRequest", RetentionRequest::read)
            .answers::<SandboxInfo>(200),
    ]
}

fn snapshots() -> Vec<Operation> {
    let source = super::id_param("sandboxId", "Only those of this sandbox.");
    let state = word::<SnapshotState>("state", "Only those in this state.");
    vec![
        get("/v1/snapshots", "listSnapshots", "List snapshots, newest first.")
            .with([source, state, text("name", "Only the one of this name."), cursor(), page()])
            .answers::<Page<SnapshotInfo>>(200),
        get("/v1/snapshots/{snapshot}", "getSnapshot", "Look at a snapshot.").answers::<SnapshotInfo>(200),
        post("/v1/snapshots/{snapshot}:update", "updateSnapshot", "Rename or label a snapshot.")
            .takes("UpdateSnapshotRequest", UpdateSnapshotRequest::read)
            .answers::<SnapshotInfo>(200),
        post("/v1/snapshots/{snapshot}:extend", "extendSnapshot", "Say how long a snapshot is kept.")
            .takes("ExtendSnapshotRequest", ExtendSnapshotRequest::read)
            .answers::<SnapshotInfo>(200),
        post("/v1/snapshots/{snapshot}:delete", "deleteSnapshot", "Remove a snapshot.").answers::<SnapshotInfo>(200),
    ]
}

fn images() -> Vec<Operation> {
    let state = word::<ImageState>("state", "Only those in this state.");
    vec![
        get("/v1/images", "listImages", "List images.")
            .with([state, text("name", "Only those of this name."), cursor(), page()])
            .answers::<Page<ImageInfo>>(200),
        post("/v1/images", "createImage", "Begin to make an image.")
            .takes("ImageRequest", ImageRequest::read)
            .answers::<ImageInfo>(201),
        post("/v1/images/context/missing", "missingChunks", "Ask which chunks of an archive are not there.")
            .takes("MissingRequest", MissingRequest::read)
            .answers::<Missing>(200),
        put("/v1/images/context/{digest}", "putChunk", "Send a chunk of an archive, named by its SHA-256 digest.")
            .takes_bytes(CHUNK_BYTES_MAX)
            .answers::<ChunkKept>(200),
        get("/v1/images/{image}/logs", "imageLog", "Read or follow what was said while an image was made.")
            .with([
                number("after", 0..=u64::MAX, "Only lines behind this one."),
                truth("follow", "Lines as they come, until the image is made."),
            ])
            .answers_with(
                200,
                "A page, or lines when followed.",
                vec![Content::Json(of::<LogPage>()), Content::Lines(of::<LogEvent>())],
            ),
        post("/v1/images/{image}:tag", "tagImage", "Point a tag of the image's name at it.")
            .takes("TagRequest", TagRequest::read)
            .answers::<ImageInfo>(200),
        post("/v1/images/{image}:untag", "untagImage", "Take a tag away.")
            .takes("TagRequest", TagRequest::read)
            .answers::<ImageInfo>(200),
        post("/v1/images/{image}:delete", "deleteImage", "Delete an image; what stands on it keeps its files.")
            .takes("EmptyRequest", Empty::read)
            .answers::<ImageInfo>(200),
        get("/v1/images/resolve", "resolveImage", "Look at the image that a text names.")
            .with([text("ref", "An id, a name, `name:tag` or `name@version`.").required()])
            .answers::<ImageInfo>(200)
            .fails(&[404]),
        get("/v1/images/{image}", "getImage", "Look at an image.").answers::<ImageInfo>(200),
    ]
}

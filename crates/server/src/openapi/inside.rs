//! What goes on inside a sandbox, described: commands, files, the interpreter, sockets, previews.

use super::operation::{
    Content, Operation, Param, delete, either, get, like, number, of, post, put, text, truth, word,
};
use super::{mode, path};
use crate::exec::LOOK_WAIT_MS_MAX;
use crate::files::GLOB_BYTES_MAX;
use crate::watches::WAIT_MS_MAX;
use branchbox_api::watch::{StoppedWatch, WatchInfo, WatchLine, WatchPage, WatchRequest};
use branchbox_api::{
    ArchiveBegun, ArchiveUploadRequest, CellEvent, ContextInfo, ContextRequest, DeletedContext, DeletedPreview, Empty,
    ExecRequest, ExecResult, Execution, FILE_BYTES_MAX, FileEntry, FileList, FileRequest, FileStat, FileWritten,
    InputAccepted, InputRequest, Interrupted, List, Metrics, MetricsRange, OutputAnswer, PREVIEW_TTL_SECONDS, PTY_SIDE,
    Preview, PreviewList, PreviewRequest, ProcessInfo, ProcessList, PtySize, Removed, RunRequest, SignalRequest,
    StreamEvent, UploadBegun, UploadRequest,
};
use branchbox_model::User;
use branchbox_node::{LIST_DEPTH_MAX, LIST_ENTRIES_MAX};
use serde_json::json;

pub(super) fn operations() -> Vec<Operation> {
    [commands(), processes(), files(), watches(), transfers(), interpreter(), sockets(), previews()].concat()
}

fn of_sandbox(rest: &str) -> String {
    format!("/v1/sandboxes/{{sandbox}}{rest}")
}

fn commands() -> Vec<Operation> {
    let answer = vec![Content::Json(of::<ExecResult>()), Content::Lines(of::<StreamEvent>())];
    vec![
        post(&of_sandbox(":exec"), "exec", "Run a command and wait for its end, or follow it line by line.")
            .takes("ExecRequest", ExecRequest::read_exec)
            .answers_with(200, "The end of the command; with `stream`, lines of events.", answer)
            .fails(&[501]),
        get(&of_sandbox("/metrics"), "getMetrics", "What the sandbox used over time.")
            .with([word::<MetricsRange>("range", "How far back; an hour when it is not said.")])
            .answers::<Metrics>(200),
    ]
}

fn processes() -> Vec<Operation> {
    let output = vec![Content::Json(of::<OutputAnswer>()), Content::Lines(of::<StreamEvent>())];
    let one = |rest: &str| of_sandbox(&format!("/processes/{{process}}{rest}"));
    vec![
        get(&of_sandbox("/processes"), "listProcesses", "The commands that run, and the last that ended.")
            .answers::<ProcessList>(200),
        post(&of_sandbox("/processes"), "startProcess", "Start a command and do not wait for its end.")
            .takes("ProcessRequest", ExecRequest::read_process)
            .answers::<ProcessInfo>(201)
            .fails(&[501]),
        get(&one(""), "getProcess", "Look at a command.").answers::<ProcessInfo>(200),
        get(&one("/output"), "getOutput", "What a command has written, once or line by line as it comes.")
            .with([
                number("cursor", 0..=u64::MAX, "Where to begin."),
                truth("follow", "Answer with lines until the command has ended."),
                number("waitMs", 0..=LOOK_WAIT_MS_MAX, "How long to wait for something new."),
                number("maxBytes", 1..=u64::MAX, "Most bytes of one answer."),
            ])
            .answers_with(200, "Output; with `follow`, lines of events.", output),
        post(&one(":write"), "writeInput", "Write to the standard input of a command.")
            .takes("InputRequest", InputRequest::read)
            .answers::<InputAccepted>(200),
        post(&one(":signal"), "signalProcess", "Send a signal to a command.")
            .takes("SignalRequest", SignalRequest::read)
            .answers::<ProcessInfo>(200),
        post(&one(":resize"), "resizeTerminal", "Say the size of a command's terminal.")
            .takes("ResizeRequest", PtySize::read)
            .answers::<ProcessInfo>(200),
    ]
}

fn files() -> Vec<Operation> {
    let file = |verb: &'static str, id, body, summary| {
        post(&of_sandbox(&format!("/files:{verb}")), id, summary)
            .takes(body, |f| FileRequest::read(verb, f))
            .fails(&[403])
    };
    let listing = [
        like("path", branchbox_api::path_schema(), "The directory; `/workspace` when it is not said."),
        number("depth", 1..=LIST_DEPTH_MAX, "How deep to look."),
        number("limit", 1..=LIST_ENTRIES_MAX, "Most entries."),
        truth("hidden", "Names that begin with a dot too."),
        like("glob", json!({ "type": "string", "maxLength": GLOB_BYTES_MAX }), "Only names like this."),
    ];
    let stat = vec![Content::Json(either::<FileEntry, FileStat>())];
    vec![
        get(&of_sandbox("/files/content"), "readFile", "Read a file.")
            .with([path()])
            .answers_with(200, "The file.", vec![Content::Bytes(None)])
            .fails(&[403]),
        put(&of_sandbox("/files/content"), "writeFile", "Write a file; larger ones go in pieces.")
            .with([path(), mode()])
            .takes_bytes(FILE_BYTES_MAX)
            .answers::<FileWritten>(200)
            .fails(&[403]),
        get(&of_sandbox("/files/list"), "listFiles", "List a directory.")
            .with(listing)
            .answers::<FileList>(200)
            .fails(&[403]),
        get(&of_sandbox("/files/stat"), "statFile", "Look whether something is there, and what.")
            .with([path()])
            .answers_with(200, "What is there, or that nothing is.", stat)
            .fails(&[403]),
        file("mkdir", "makeDirectory", "MkdirRequest", "Make a directory.").answers::<Empty>(200),
        file("remove", "removeFile", "RemoveRequest", "Remove a file or a directory.").answers::<Removed>(200),
        file("rename", "renameFile", "RenameRequest", "Move a file or a directory.").answers::<Empty>(200),
        file("chmod", "changeMode", "ChmodRequest", "Set permissions.").answers::<Empty>(200),
    ]
}

fn transfers() -> Vec<Operation> {
    let offset = || number("offset", 0..=u64::MAX, "Where the piece begins.").required();
    let user = || word::<User>("user", "Who reads or writes inside.");
    let excludes = like("exclude", branchbox_api::relative_path_schema(), "Leave this out.").many();
    let piece = |path: &str, id, summary| {
        put(&of_sandbox(path), id, summary).with([offset()]).takes_bytes(FILE_BYTES_MAX).answers::<Empty>(200)
    };
    let end = |path: &str, id, summary| {
        post(&of_sandbox(path), id, summary).takes("EmptyRequest", Empty::read).answers::<Empty>(200).fails(&[403])
    };
    vec![
        post(&of_sandbox("/uploads"), "beginUpload", "Begin a large file.")
            .takes("UploadRequest", UploadRequest::read)
            .answers::<UploadBegun>(201)
            .fails(&[403]),
        piece("/uploads/{upload}", "uploadPiece", "Send a piece of a large file."),
        end("/uploads/{upload}:commit", "commitUpload", "Put the large file in its place."),
        end("/uploads/{upload}:abort", "abortUpload", "Drop a large file."),
        get(&of_sandbox("/files/archive"), "packFiles", "Read a folder as a tar archive.")
            .with([path(), truth("gzip", "Compress it."), user(), excludes])
            .answers_with(200, "The archive.", vec![Content::Bytes(None)])
            .fails(&[403]),
        put(&of_sandbox("/files/archive"), "unpackFiles", "Unpack a gzipped tar archive into a folder.")
            .with([path(), user()])
            .takes_bytes(FILE_BYTES_MAX)
            .answers::<Empty>(200)
            .fails(&[403]),
        post(&of_sandbox("/files/archive/uploads"), "beginArchive", "Begin a large archive.")
            .takes("ArchiveUploadRequest", ArchiveUploadRequest::read)
            .answers::<ArchiveBegun>(201)
            .fails(&[403]),
        piece("/files/archive/uploads/{upload}", "archivePiece", "Send a piece of a large archive."),
        end("/files/archive/uploads/{upload}:commit", "commitArchive", "Unpack the large archive."),
        end("/files/archive/uploads/{upload}:abort", "abortArchive", "Drop a large archive."),
    ]
}

fn interpreter() -> Vec<Operation> {
    let cell = vec![Content::Json(of::<Execution>()), Content::Lines(of::<CellEvent>())];
    let one = |rest: &str| of_sandbox(&format!("/interpreter/contexts/{{context}}{rest}"));
    vec![
        post(&of_sandbox("/interpreter:run"), "runCell", "Run code in a context, which keeps its state.")
            .takes("RunRequest", RunRequest::read)
            .answers_with(200, "What came of it; with `stream`, lines of events.", cell)
            .fails(&[501, 502]),
        get(&of_sandbox("/interpreter/contexts"), "listContexts", "The contexts of a sandbox.")
            .answers::<List<ContextInfo>>(200)
            .fails(&[502]),
        post(&of_sandbox("/interpreter/contexts"), "createContext", "Make a context.")
            .takes("ContextRequest", ContextRequest::read)
            .answers::<ContextInfo>(201)
            .fails(&[501, 502]),
        delete(&one(""), "deleteContext", "End a context.").answers::<DeletedContext>(200).fails(&[502]),
        post(&one(":restart"), "restartContext", "Start a context afresh.")
            .takes("EmptyRequest", Empty::read)
            .answers::<ContextInfo>(200)
            .fails(&[502]),
        post(&one(":interrupt"), "interruptContext", "Interrupt what runs in a context.")
            .takes("EmptyRequest", Empty::read)
            .answers::<Interrupted>(200)
            .fails(&[502]),
        get(&one("/results/{result}"), "getResult", "A result too large for its cell's answer; this node keeps none.")
            .answers_with(200, "The result.", vec![Content::Bytes(None)]),
    ]
}

fn watches() -> Vec<Operation> {
    let read = vec![Content::Json(of::<WatchPage>()), Content::Lines(of::<WatchLine>())];
    let one = |rest: &str| of_sandbox(&format!("/files/watches/{{watch}}{rest}"));
    vec![
        get(&of_sandbox("/files/watches"), "listWatches", "The watches that run.").answers::<List<WatchInfo>>(200),
        post(&of_sandbox("/files/watches"), "startWatch", "Tell what changes below a folder.")
            .takes("WatchRequest", WatchRequest::read)
            .answers::<WatchInfo>(201)
            .fails(&[403, 501]),
        delete(&one(""), "stopWatch", "End a watch.").answers::<StoppedWatch>(200),
        get(&one("/events"), "readWatch", "What has changed, once or line by line as it comes; it wakes no sandbox.")
            .with([
                number("cursor", 0..=u64::MAX, "Where to begin."),
                truth("follow", "Answer with lines for 110 seconds, or until it ends or the sandbox is paused."),
                number("waitMs", 0..=WAIT_MS_MAX, "How long to wait for something new."),
            ])
            .answers_with(200, "Changes; with `follow`, lines of them.", read),
    ]
}

fn sockets() -> Vec<Operation> {
    let side = |name| number(name, *PTY_SIDE.start()..=*PTY_SIDE.end(), "The terminal's size in characters.");
    let terminal: [Param; 6] = [
        side("cols"),
        side("rows"),
        text("command", "What to run; a shell when it is not said."),
        text("cwd", "Where to run it."),
        word::<User>("user", "As whom."),
        text("processId", "Take up the terminal of this command, with a size and nothing else."),
    ];
    vec![
        get(
            &of_sandbox("/terminal"),
            "openTerminal",
            "A terminal, as a WebSocket: bytes both ways, and messages in JSON.",
        )
        .with(terminal)
        .answers_with(101, "The connection is a WebSocket now.", vec![Content::Nothing]),
        get(&of_sandbox("/tunnel"), "openTunnel", "Connections to ports inside, over one WebSocket of binary frames.")
            .answers_with(101, "The connection is a WebSocket now.", vec![Content::Nothing]),
    ]
}

fn previews() -> Vec<Operation> {
    let one = |rest: &str| of_sandbox(&format!("/previews/{{port}}{rest}"));
    vec![
        get(&of_sandbox("/previews"), "listPreviews", "The ports that are shared.")
            .answers::<PreviewList>(200)
            .fails(&[501]),
        post(&of_sandbox("/previews"), "sharePort", "Share a port over HTTP.")
            .takes("PreviewRequest", PreviewRequest::read)
            .answers::<Preview>(201)
            .fails(&[501]),
        get(&one(""), "getPreview", "A fresh address of a shared port.")
            .with([
                number(
                    "ttlSeconds",
                    *PREVIEW_TTL_SECONDS.start()..=*PREVIEW_TTL_SECONDS.end(),
                    "How long its token lives.",
                ),
                like(
                    "expiresAt",
                    json!({ "type": "string", "format": "date-time" }),
                    "When its token ends; a time to come.",
                ),
            ])
            .answers::<Preview>(200)
            .fails(&[501]),
        post(&one(":rotate"), "rotatePreview", "Give it a new address; old ones are void.")
            .takes("EmptyRequest", Empty::read)
            .answers::<Preview>(200)
            .fails(&[501]),
        delete(&one(""), "deletePreview", "Share the port no more.").answers::<DeletedPreview>(200),
    ]
}

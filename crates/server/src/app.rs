//! From a request to an answer: its name, its key, its body, its route.

use crate::answer::{Answer, Answered, Failure, Origin, response};
use crate::audit::{self, Asker};
use crate::idempotency::{self, Keyed, Running};
use crate::previews;
use crate::query::{Query, components};
use crate::rates::{InFlight, Rates};
use crate::routes::{self, Route};
use crate::sockets::{self, Places, terminal, tunnel};
use crate::{exec, files, history, images, interpreter, keys, openapi, sandboxes, snapshots, watches};
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Request, Response};
use branchbox_api::image::CHUNK_BYTES_MAX;
use branchbox_api::{FILE_BYTES_MAX, JSON_BYTES_MAX, List};
use branchbox_model::{Code, SandboxId};
use branchbox_node::{Caller, Node};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest wait that a client may ask for, below the time it waits for an answer to begin.
const WAIT_SECONDS_MAX: u64 = 110;

/// Who may ask on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Who has a key.
    Key,
    /// Whoever could open the socket.
    Owner,
}

/// What all listeners share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) node: Node,
    running: Running,
    rates: Rates,
    pub(crate) terminals: Places,
    pub(crate) tunnels: Places,
    pub(crate) visits: Places,
    /// The TCP port of the API, where previews are too.
    pub(crate) port: OnceLock<u16>,
}

impl App {
    pub(crate) fn new(node: Node) -> Self {
        let terminals = Places::new("terminals", terminal::OF_SANDBOX_MAX, terminal::OF_NODE_MAX);
        let tunnels = Places::new("tunnels", tunnel::OF_SANDBOX_MAX, tunnel::OF_NODE_MAX);
        let visits = Places::new("visits", previews::OF_PREVIEW_MAX, previews::OF_NODE_MAX);
        Self {
            node,
            running: Running::default(),
            rates: Rates::default(),
            terminals,
            tunnels,
            visits,
            port: OnceLock::new(),
        }
    }
}

/// A request, read.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) query: Query,
    pub(crate) body: Bytes,
    /// What `Prefer: wait=N` says.
    pub(crate) wait: Option<Duration>,
    /// Who asks.
    pub(crate) caller: Caller,
    /// Its place among the requests of its key.
    pub(crate) _place: Option<InFlight>,
    /// Its connection, if it asks for a WebSocket.
    pub(crate) upgrade: Option<WebSocketUpgrade>,
}

/// Answers one request.
pub(crate) async fn handle(app: Arc<App>, access: Access, request: Request<Body>) -> Response<Body> {
    if access == Access::Key
        && let Some(label) = previews::label(request.uri(), request.headers())
    {
        return previews::visit(&app, &label, request).await;
    }
    let request_id = format!("req_{}", SandboxId::generate().as_str().replace('-', ""));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let asker = Asker::of(&request, &request_id);
    let (answered, origin) = match read(&app, access, request).await {
        Ok((route, asked, keyed)) => run(app, &method, route, asked, keyed, asker).await,
        Err(failure) => (Err(failure), Origin::Fresh),
    };
    let response = response(answered, origin, &request_id);
    tracing::debug!(%method, path, status = response.status().as_u16(), request_id, "answered");
    response
}

async fn read(app: &App, access: Access, request: Request<Body>) -> Result<(Route, Asked, Option<Keyed>), Failure> {
    let (mut parts, body) = request.into_parts();
    let unreadable = || Failure::new(Code::RouteNotFound, "the path cannot be read", "percent-encode it as UTF-8");
    let route = components(parts.uri.path()).ok_or_else(unreadable);
    let route = route.and_then(|components| routes::find(&parts.method, &components));
    let caller = match access {
        Access::Key if !matches!(route, Ok(Route::OpenApi)) => check_key(&parts.headers, |key| app.node.caller(key))?,
        // Whoever asks for the document learns nothing of this node.
        Access::Owner | Access::Key => Caller::Owner,
    };
    let _place = app.rates.count(&app.node, &caller)?;
    let route = route?;
    let query = Query::parse(parts.uri.query())?;
    let wait = wait(&parts.headers);
    let body = read_body(&parts.method, &route, body).await?;
    let uri = parts.uri.path_and_query().map_or("/", |uri| uri.as_str());
    let keyed = match parts.headers.get("idempotency-key") {
        Some(key) if parts.method != Method::GET => {
            let (key, account) = (key.to_str().unwrap_or_default(), caller.account());
            let keyed = Keyed::new(key, account, parts.method.as_str(), uri, &body)?;
            // Answers are kept, and a key must not be.
            Some(keyed).filter(|_| route != Route::CreateKey)
        }
        _ => None,
    };
    let upgrade = sockets::upgrade(&mut parts).await;
    Ok((route, Asked { query, body, wait, caller, _place, upgrade }, keyed))
}

fn check_key(headers: &HeaderMap, find: impl Fn(&str) -> Option<Caller>) -> Result<Caller, Failure> {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token {
        Some((_, token)) => find(token.trim()).ok_or_else(|| unauthorized("the key is not one of this node")),
        None => Err(unauthorized("a key is needed: Authorization: Bearer KEY")),
    }
}

fn unauthorized(message: &str) -> Failure {
    Failure::new(Code::Unauthorized, message, "the key is in admin.key of the node's state directory")
}

/// What `Prefer: wait=N` asks for.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let prefer = headers.get("prefer")?.to_str().ok()?;
    let seconds = prefer.split([',', ';']).find_map(|part| part.trim().strip_prefix("wait="))?;
    Some(Duration::from_secs(seconds.trim().parse::<u64>().ok()?.min(WAIT_SECONDS_MAX)))
}

async fn read_body(method: &Method, route: &Route, body: Body) -> Result<Bytes, Failure> {
    if method == Method::GET {
        return Ok(Bytes::new());
    }
    let bytes_max = match route {
        Route::WriteFile { .. } | Route::UploadPiece { .. } | Route::Unpack { .. } | Route::ArchivePiece { .. } => {
            FILE_BYTES_MAX
        }
        Route::PutChunk { .. } => CHUNK_BYTES_MAX,
        _ => JSON_BYTES_MAX,
    };
    match Limited::new(body, bytes_max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::new(
            Code::TooLarge,
            format!("the body has more than {bytes_max} bytes"),
            "send less; larger files and folders go in pieces: POST uploads, POST files/archive/uploads",
        )),
        Err(_) => Err(Failure::new(Code::InvalidRequest, "the body was cut off", "send it again")),
    }
}

/// Runs a request. What changes something is finished even when the client hangs up.
async fn run(
    app: Arc<App>,
    method: &Method,
    route: Route,
    asked: Asked,
    keyed: Option<Keyed>,
    asker: Asker,
) -> (Answered, Origin) {
    if method == Method::GET {
        return (dispatch(&app, route, asked).await, Origin::Fresh);
    }
    let task = tokio::spawn(async move {
        let (node, caller, changed) = (&app.node, asked.caller.clone(), route.clone());
        let run = audit::watched(node, &caller, &changed, asker, dispatch(&app, route, asked));
        match keyed {
            None => (run.await, Origin::Fresh),
            Some(keyed) => {
                let attach = |sandbox: String, process: String| {
                    let node = app.node.clone();
                    async move { exec::attach(&node, &sandbox, &process).await }
                };
                idempotency::once(&app.node, &app.running, keyed, run, attach).await
            }
        }
    });
    task.await.unwrap_or_else(|_| {
        let failure =
            Failure::new(Code::InternalError, "the request was cut off inside the node", "look into the node's log");
        (Err(failure), Origin::Fresh)
    })
}

async fn dispatch(app: &App, route: Route, asked: Asked) -> Answered {
    let node = &app.node;
    match route {
        Route::OpenApi => Ok(Answer::Json { status: 200, body: openapi::document().clone() }),
        Route::Me => Answer::ok(&node.me(&asked.caller)),
        Route::Limits => Answer::ok(&node.limits(&asked.caller).await?),
        Route::Audit => audit::list(node, asked).await,
        Route::Metrics { id } => history::metrics(node, &id, asked).await,
        Route::Events => history::events(node, asked).await,
        Route::Usage => Answer::ok(&node.usage().await?),
        Route::ListSandboxes => sandboxes::list(node, asked).await,
        Route::CreateSandbox => sandboxes::create(node, &asked).await,
        Route::GetSandbox { id } => sandboxes::get(node, &id, asked).await,
        Route::DeleteSandbox { id } => Answer::ok(&node.delete(&id).await?),
        Route::Stop { id } => sandboxes::stop(node, &id, &asked).await,
        Route::Fork { id } => sandboxes::fork(node, &id, &asked).await,
        Route::Update { id } => sandboxes::update(node, &id, &asked).await,
        Route::Pause { id } => sandboxes::pause(node, &id, &asked).await,
        Route::Wake { id } => sandboxes::wake(node, &id, &asked).await,
        Route::Restart { id } => sandboxes::restart(node, &id, &asked).await,
        Route::Extend { id } => sandboxes::extend(node, &id, &asked).await,
        Route::Retention { id } => sandboxes::retention(node, &id, &asked).await,
        Route::GetNetwork { id } => Answer::ok(&node.network(&id).await?),
        Route::PutNetwork { id } => sandboxes::set_network(node, &id, &asked).await,
        Route::Terminal { id } => terminal::open(app, &id, asked),
        Route::Tunnel { id } => tunnel::open(app, &id, asked),
        Route::SharePort { id } => previews::share(app, &id, &asked).await,
        Route::ListPreviews { id } => previews::list(app, &id),
        Route::GetPreview { id, port } => previews::get(app, &id, &port, asked),
        Route::RotatePreview { id, port } => previews::rotate(app, &id, &port, &asked).await,
        Route::DeletePreview { id, port } => previews::unshare(app, &id, &port).await,
        Route::Exec { id } => exec::exec(node, &id, &asked).await,
        Route::ListProcesses { id } => Answer::ok(&node.processes(&id).await?),
        Route::StartProcess { id } => exec::start(node, &id, &asked).await,
        Route::GetProcess { id, process } => Answer::ok(&node.process(&id, &process).await?.1),
        Route::ProcessOutput { id, process } => exec::output(node, &id, &process, asked).await,
        Route::ProcessInput { id, process } => exec::input(node, &id, &process, &asked).await,
        Route::ProcessResize { id, process } => exec::resize(node, &id, &process, &asked).await,
        Route::ProcessSignal { id, process } => exec::signal(node, &id, &process, &asked).await,
        Route::ReadFile { id } => files::read(node, &id, &asked).await,
        Route::WriteFile { id } => files::write(node, &id, &asked).await,
        Route::ListFiles { id } => files::list(node, &id, asked).await,
        Route::StatFile { id } => files::stat(node, &id, &asked).await,
        Route::ChangeFile { id, verb } => files::change(node, &id, &verb, &asked).await,
        Route::RunCell { id } => interpreter::run(node, &id, &asked).await,
        Route::ListContexts { id } => interpreter::list(node, &id).await,
        Route::CreateContext { id } => interpreter::create(node, &id, &asked).await,
        Route::RestartContext { id, context } => interpreter::restart(node, &id, &context, &asked).await,
        Route::InterruptContext { id, context } => interpreter::interrupt(node, &id, &context, &asked).await,
        Route::DeleteContext { id, context } => interpreter::delete(node, &id, &context).await,
        Route::ContextResult => interpreter::result(),
        Route::BeginUpload { id } => files::begin_upload(node, &id, &asked).await,
        Route::UploadPiece { id, upload } => files::upload_piece(node, &id, &upload, asked).await,
        Route::EndUpload { id, upload, how } => files::end_upload(node, &id, &upload, how, &asked).await,
        Route::ListWatches { id } => Answer::ok(&List { data: node.watches(&id).await? }),
        Route::StartWatch { id } => watches::start(node, &id, &asked).await,
        Route::StopWatch { id, watch } => watches::stop(node, &id, &watch).await,
        Route::ReadWatch { id, watch } => watches::read(node, &id, &watch, asked).await,
        Route::Pack { id } => files::pack(node, &id, asked).await,
        Route::Unpack { id } => files::unpack(node, &id, &asked).await,
        Route::BeginArchive { id } => files::begin_archive(node, &id, &asked).await,
        Route::ArchivePiece { id, upload } => files::archive_piece(node, &id, &upload, asked).await,
        Route::EndArchive { id, upload, how } => files::end_archive(node, &id, &upload, how, &asked).await,
        Route::Snapshot { id } => snapshots::take(node, &id, &asked).await,
        Route::CreateKey => keys::create(node, &asked).await,
        Route::ListKeys => keys::list(node, &asked),
        Route::DeleteKey { id } => keys::delete(node, &id, &asked).await,
        Route::ListImages => images::list(node, asked),
        Route::CreateImage => images::create(node, &asked).await,
        Route::MissingChunks => images::missing(node, &asked).await,
        Route::PutChunk { digest } => images::put_chunk(node, digest, &asked).await,
        Route::ImageLog { id } => images::log(node, &id, asked).await,
        Route::TagImage { id } => images::tag(node, &id, &asked).await,
        Route::UntagImage { id } => images::untag(node, &id, &asked).await,
        Route::DeleteImage { id } => images::delete(node, &id, &asked).await,
        Route::ResolveImage => images::resolve(node, &asked),
        Route::GetImage { id } => images::get(node, &id),
        Route::ListSnapshots => snapshots::list(node, asked).await,
        Route::GetSnapshot { id } => Answer::ok(&node.get_snapshot(&id).await?),
        Route::UpdateSnapshot { id } => snapshots::update(node, &id, &asked).await,
        Route::ExtendSnapshot { id } => snapshots::extend(node, &id, &asked).await,
        Route::DeleteSnapshot { id } => Answer::ok(&node.delete_snapshot(&id).await?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_comes_as_a_bearer() {
        let known = |key: &str| (key == "k").then_some(Caller::Admin);
        let check = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            check_key(&headers, known).map(drop).map_err(|failure| failure.0.status)
        };
        assert_eq!(check("Bearer k"), Ok(()));
        assert_eq!(check("bearer k"), Ok(()));
        for bad in ["Basic k", "k", "Bearer", "Bearer x"] {
            assert_eq!(check(bad), Err(401), "{bad}");
        }
        assert!(check_key(&HeaderMap::new(), known).is_err());
    }

    #[test]
    fn waits_are_read_and_bounded() {
        let wait_of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_static(value));
            wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(wait_of("wait=60"), Some(60));
        assert_eq!(wait_of("respond-async, wait=10"), Some(10));
        assert_eq!(wait_of("wait=100000"), Some(WAIT_SECONDS_MAX));
        assert_eq!(wait_of("wait=x"), None);
    }
}

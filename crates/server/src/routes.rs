//! The table of routes: a method and a path name one thing to do, or the reason why there is none.

use crate::answer::Failure;
use crate::unavailable;
use axum::http::Method;
use branchbox_model::Code;

/// The enum, and a list of its variants: every one of them must be in the API document.
macro_rules! routes {
    ($(#[$about:meta])* pub(crate) enum Route {
        $($name:ident $({ $($field:ident: $kind:ty),* $(,)? })?,)*
    }) => {
        $(#[$about])*
        pub(crate) enum Route { $($name $({ $($field: $kind),* })?,)* }

        #[cfg(test)]
        impl Route {
            /// The name of each.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
        }
    };
}

routes! {
/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    OpenApi,
    Me,
    Limits,
    Usage,
    Events,
    Audit,
    Metrics { id: String },
    ListSandboxes,
    CreateSandbox,
    GetSandbox { id: String },
    DeleteSandbox { id: String },
    Exec { id: String },
    Stop { id: String },
    Fork { id: String },
    Snapshot { id: String },
    Update { id: String },
    Pause { id: String },
    Wake { id: String },
    Restart { id: String },
    Extend { id: String },
    Retention { id: String },
    GetNetwork { id: String },
    PutNetwork { id: String },
    Terminal { id: String },
    Tunnel { id: String },
    SharePort { id: String },
    ListPreviews { id: String },
    GetPreview { id: String, port: String },
    RotatePreview { id: String, port: String },
    DeletePreview { id: String, port: String },
    ListProcesses { id: String },
    StartProcess { id: String },
    GetProcess { id: String, process: String },
    ProcessOutput { id: String, process: String },
    ProcessInput { id: String, process: String },
    ProcessSignal { id: String, process: String },
    ProcessResize { id: String, process: String },
    ReadFile { id: String },
    WriteFile { id: String },
    ListFiles { id: String },
    StatFile { id: String },
    ChangeFile { id: String, verb: String },
    RunCell { id: String },
    ListContexts { id: String },
    CreateContext { id: String },
    RestartContext { id: String, context: String },
    InterruptContext { id: String, context: String },
    DeleteContext { id: String, context: String },
    ContextResult,
    BeginUpload { id: String },
    UploadPiece { id: String, upload: String },
    EndUpload { id: String, upload: String, how: End },
    ListWatches { id: String },
    StartWatch { id: String },
    StopWatch { id: String, watch: String },
    ReadWatch { id: String, watch: String },
    Pack { id: String },
    Unpack { id: String },
    BeginArchive { id: String },
    ArchivePiece { id: String, upload: String },
    EndArchive { id: String, upload: String, how: End },
    CreateKey,
    ListKeys,
    DeleteKey { id: String },
    ListImages,
    ResolveImage,
    GetImage { id: String },
    CreateImage,
    MissingChunks,
    PutChunk { digest: String },
    ImageLog { id: String },
    TagImage { id: String },
    UntagImage { id: String },
    DeleteImage { id: String },
    ListSnapshots,
    GetSnapshot { id: String },
    UpdateSnapshot { id: String },
    ExtendSnapshot { id: String },
    DeleteSnapshot { id: String },
}
}

/// The detail that names the methods of a path; it becomes the header of that name.
pub(crate) const ALLOW: &str = "allow";

/// How an upload ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Abort,
}

/// The end of an upload that a verb asks for.
fn end(verb: &str) -> Option<End> {
    match verb {
        "commit" => Some(End::Commit),
        "abort" => Some(End::Abort),
        _ => None,
    }
}

/// Splits `id:verb` at the last colon, as ids and names hold none.
fn target(component: &str) -> (String, Option<&str>) {
    match component.rsplit_once(':') {
        Some((id, verb)) => (id.to_owned(), Some(verb)),
        None => (component.to_owned(), None),
    }
}

/// Finds the route of a request.
pub(crate) fn find(method: &Method, components: &[String]) -> Result<Route, Failure> {
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
    look_up(method, components).map_err(|failure| {
        if failure.0.code != Code::MethodNotAllowed.as_str() && known.contains(method) {
            return failure;
        }
        let taken: Vec<&str> =
            known.iter().filter(|known| look_up(known, components).is_ok()).map(Method::as_str).collect();
        if taken.is_empty() { failure } else { wrong_method(method, &taken.join(", ")) }
    })
}

fn look_up(method: &Method, components: &[String]) -> Result<Route, Failure> {
    let parts: Vec<&str> = components.iter().map(String::as_str).collect();
    let (get, post, put, delete) =
        (method == Method::GET, method == Method::POST, method == Method::PUT, method == Method::DELETE);
    let route = match parts.as_slice() {
        ["v1", "openapi.json"] => get.then_some(Route::OpenApi),
        ["v1", "me"] => get.then_some(Route::Me),
        ["v1", "limits"] => get.then_some(Route::Limits),
        ["v1", "audit"] => get.then_some(Route::Audit),
        ["v1", "events"] => get.then_some(Route::Events),
        ["v1", "usage"] => get.then_some(Route::Usage),
        ["v1", "sandboxes"] if get => Some(Route::ListSandboxes),
        ["v1", "sandboxes"] => post.then_some(Route::CreateSandbox),
        ["v1", "sandboxes", part] => match target(part) {
            (id, None) if get => Some(Route::GetSandbox { id }),
            (id, None) => delete.then_some(Route::DeleteSandbox { id }),
            (id, Some(verb)) => Some(sandbox_verb(id, verb)?).filter(|_| post),
        },
        ["v1", "sandboxes", id, rest @ ..] => {
            return sandbox_part(method, id, rest).unwrap_or_else(|| Err(no_route(&parts)));
        }
        ["v1", "keys"] if get => Some(Route::ListKeys),
        ["v1", "keys"] => post.then_some(Route::CreateKey),
        ["v1", "keys", id] => delete.then(|| Route::DeleteKey { id: (*id).to_owned() }),
        ["v1", "images"] if get => Some(Route::ListImages),
        ["v1", "images"] => post.then_some(Route::CreateImage),
        ["v1", "images", "context", "missing"] => post.then_some(Route::MissingChunks),
        ["v1", "images", "context", digest] => put.then(|| Route::PutChunk { digest: (*digest).to_owned() }),
        ["v1", "images", "resolve"] if get => Some(Route::ResolveImage),
        ["v1", "images", id, "logs"] => get.then(|| Route::ImageLog { id: (*id).to_owned() }),
        ["v1", "images", part] => match target(part) {
            (id, None) if *part != "registries" => get.then_some(Route::GetImage { id }),
            (id, Some("tag")) => post.then_some(Route::TagImage { id }),
            (id, Some("untag")) => post.then_some(Route::UntagImage { id }),
            (id, Some("delete")) if id != "registries" => post.then_some(Route::DeleteImage { id }),
            _ => return Err(no_route(&parts)),
        },
        ["v1", "snapshots"] => get.then_some(Route::ListSnapshots),
        ["v1", "snapshots", part] => match target(part) {
            (id, None) => get.then_some(Route::GetSnapshot { id }),
            (id, Some(verb)) => Some(snapshot_verb(id, verb).ok_or_else(|| no_route(&parts))?).filter(|_| post),
        },
        _ => return Err(no_route(&parts)),
    };
    debug_assert!(route.is_none() || get || post || put || delete, "a route of another method");
    route.ok_or_else(|| wrong_method(method, ""))
}

fn sandbox_verb(id: String, verb: &str) -> Result<Route, Failure> {
    Ok(match verb {
        "exec" => Route::Exec { id },
        "stop" => Route::Stop { id },
        "fork" => Route::Fork { id },
        "snapshot" => Route::Snapshot { id },
        "update" => Route::Update { id },
        "pause" => Route::Pause { id },
        "wake" => Route::Wake { id },
        "restart" => Route::Restart { id },
        "extend" => Route::Extend { id },
        "retention" => Route::Retention { id },
        other => return Err(unavailable::sandbox_verb(other).unwrap_or_else(|| no_route(&["…", other]))),
    })
}

fn snapshot_verb(id: String, verb: &str) -> Option<Route> {
    Some(match verb {
        "update" => Route::UpdateSnapshot { id },
        "extend" => Route::ExtendSnapshot { id },
        "delete" => Route::DeleteSnapshot { id },
        _ => return None,
    })
}

/// Routes below one sandbox; `None` when there is no such path.
fn sandbox_part(method: &Method, id: &str, rest: &[&str]) -> Option<Result<Route, Failure>> {
    let id = id.to_owned();
    let (get, post, put) = (method == Method::GET, method == Method::POST, method == Method::PUT);
    let route = match rest {
        ["network"] if get => Some(Route::GetNetwork { id }),
        ["network"] => put.then_some(Route::PutNetwork { id }),
        ["previews"] if get => Some(Route::ListPreviews { id }),
        ["previews"] => post.then_some(Route::SharePort { id }),
        ["previews", part] => match target(part) {
            (port, None) if get => Some(Route::GetPreview { id, port }),
            (port, None) => (method == Method::DELETE).then_some(Route::DeletePreview { id, port }),
            (port, Some("rotate")) => post.then_some(Route::RotatePreview { id, port }),
            _ => return None,
        },
        ["metrics"] => get.then_some(Route::Metrics { id }),
        ["terminal"] => get.then_some(Route::Terminal { id }),
        ["tunnel"] => get.then_some(Route::Tunnel { id }),
        ["processes"] if get => Some(Route::ListProcesses { id }),
        ["processes"] => post.then_some(Route::StartProcess { id }),
        ["processes", process, "output"] => get.then(|| Route::ProcessOutput { id, process: (*process).to_owned() }),
        ["processes", part] => match target(part) {
            (process, None) => get.then_some(Route::GetProcess { id, process }),
            (process, Some("write")) => post.then_some(Route::ProcessInput { id, process }),
            (process, Some("signal")) => post.then_some(Route::ProcessSignal { id, process }),
            (process, Some("resize")) => post.then_some(Route::ProcessResize { id, process }),
            _ => return None,
        },
        ["interpreter:run"] => post.then_some(Route::RunCell { id }),
        ["interpreter", "contexts"] if get => Some(Route::ListContexts { id }),
        ["interpreter", "contexts"] => post.then_some(Route::CreateContext { id }),
        ["interpreter", "contexts", _, "results", _] => get.then_some(Route::ContextResult),
        ["interpreter", "contexts", part] => match target(part) {
            (context, None) => (method == Method::DELETE).then_some(Route::DeleteContext { id, context }),
            (context, Some("restart")) => post.then_some(Route::RestartContext { id, context }),
            (context, Some("interrupt")) => post.then_some(Route::InterruptContext { id, context }),
            _ => return None,
        },
        ["uploads"] => post.then_some(Route::BeginUpload { id }),
        ["uploads", part] => match target(part) {
            (upload, None) => put.then_some(Route::UploadPiece { id, upload }),
            (upload, Some(verb)) => Some(Route::EndUpload { id, upload, how: end(verb)? }).filter(|_| post),
        },
        ["files", "watches"] if get => Some(Route::ListWatches { id }),
        ["files", "watches"] => post.then_some(Route::StartWatch { id }),
        ["files", "watches", watch] => {
            (method == Method::DELETE).then(|| Route::StopWatch { id, watch: (*watch).to_owned() })
        }
        ["files", "watches", watch, "events"] => get.then(|| Route::ReadWatch { id, watch: (*watch).to_owned() }),
        ["files", "archive"] if get => Some(Route::Pack { id }),
        ["files", "archive"] => put.then_some(Route::Unpack { id }),
        ["files", "archive", "uploads"] => post.then_some(Route::BeginArchive { id }),
        ["files", "archive", "uploads", part] => match target(part) {
            (upload, None) => put.then_some(Route::ArchivePiece { id, upload }),
            (upload, Some(verb)) => Some(Route::EndArchive { id, upload, how: end(verb)? }).filter(|_| post),
        },
        ["files", "content"] if get => Some(Route::ReadFile { id }),
        ["files", "content"] => put.then_some(Route::WriteFile { id }),
        ["files", "list"] => get.then_some(Route::ListFiles { id }),
        ["files", "stat"] => get.then_some(Route::StatFile { id }),
        [part] => match part.split_once(':') {
            Some(("files", verb)) if ["mkdir", "remove", "rename", "chmod"].contains(&verb) => {
                post.then(|| Route::ChangeFile { id, verb: verb.to_owned() })
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(route.ok_or_else(|| wrong_method(method, "")))
}

fn no_route(parts: &[&str]) -> Failure {
    unavailable::path(parts).unwrap_or_else(|| {
        let shown: String = parts.join("/").chars().take(200).collect();
        Failure::new(Code::RouteNotFound, format!("no route `/{shown}`"), "compare the path with the documentation")
    })
}

/// A method that a path does not take, and those that it does.
fn wrong_method(method: &Method, allowed: &str) -> Failure {
    let message = format!("this route does not take {method}");
    let mut failure = Failure::new(Code::MethodNotAllowed, message, "compare the method with the documentation");
    failure.0.details.insert(ALLOW.into(), allowed.into());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(method: Method, path: &str) -> Result<Route, String> {
        find(&method, &crate::query::components(path).expect("a path")).map_err(|failure| failure.0.code)
    }

    #[test]
    fn paths_find_their_routes() {
        let id = || "5".to_owned();
        assert_eq!(look(Method::POST, "/v1/sandboxes/5:fork"), Ok(Route::Fork { id: id() }));
        assert_eq!(look(Method::GET, "/v1/sandboxes/5"), Ok(Route::GetSandbox { id: id() }));
        assert_eq!(look(Method::PUT, "/v1/sandboxes/5/network"), Ok(Route::PutNetwork { id: id() }));
        let signal = Route::ProcessSignal { id: id(), process: "p1".into() };
        assert_eq!(look(Method::POST, "/v1/sandboxes/5/processes/p1:signal"), Ok(signal));
        assert_eq!(
            look(Method::POST, "/v1/sandboxes/5/files:mkdir"),
            Ok(Route::ChangeFile { id: id(), verb: "mkdir".into() })
        );
        assert_eq!(look(Method::POST, "/v1/snapshots/5:delete"), Ok(Route::DeleteSnapshot { id: id() }));
        assert_eq!(look(Method::POST, "/v1/sandboxes/5%3Astop"), Ok(Route::Stop { id: id() }));
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        for (method, path, allowed) in [
            (Method::PATCH, "/v1/sandboxes", "GET, POST"),
            (Method::TRACE, "/v1/images/resolve", "GET"),
            (Method::GET, "/v1/sandboxes/5:fork", "POST"),
        ] {
            let failure = find(&method, &crate::query::components(path).expect("a path")).expect_err("refused");
            assert_eq!((failure.0.status, &failure.0.details[ALLOW]), (405, &allowed.into()), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_says_which_kind_of_not_there() {
        for (method, path, code) in [
            (Method::GET, "/v1/nothing", "route_not_found"),
            (Method::GET, "/", "route_not_found"),
            (Method::PATCH, "/v1/sandboxes", "method_not_allowed"),
            (Method::GET, "/v1/sandboxes/5:fork", "method_not_allowed"),
            (Method::POST, "/v1/sandboxes/5:dance", "route_not_found"),
            (Method::POST, "/v1/sandboxes/5:resize", "unavailable"),
            (Method::GET, "/v1/sandboxes/5/uploads", "method_not_allowed"),
            (Method::POST, "/v1/sandboxes/5/uploads/u:forget", "route_not_found"),
            (Method::POST, "/v1/sandboxes/5/files/watches/w/events", "method_not_allowed"),
            (Method::POST, "/v1/sandboxes/5/files:link", "unavailable"),
            (Method::GET, "/v1/volumes", "unavailable"),
            (Method::POST, "/v1/openapi.json", "method_not_allowed"),
            (Method::GET, "/v1/images/registries", "unavailable"),
            (Method::POST, "/mcp", "unavailable"),
            (Method::GET, "/v1/sandboxes/5/nothing", "route_not_found"),
        ] {
            assert_eq!(look(method, path), Err(code.to_owned()), "{path}");
        }
    }
}

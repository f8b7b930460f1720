//! Listening: on loopback with keys, and on the node's own socket, whose file mode is the key.

use crate::app::{self, App};
use axum::Router;
use axum::serve::ListenerExt;
use branchbox_node::Node;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long open requests may take to end when the server stops; streams end at once.
const STOP_WAIT: Duration = Duration::from_secs(130);

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Only loopback is served: the API has no TLS of its own.
    #[error("{address} is not a loopback address")]
    NotLoopback {
        /// As asked for.
        address: SocketAddr,
    },
    /// The address or path cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// As asked for.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The API of one node.
#[derive(Debug, Clone)]
pub struct Server {
    app: Arc<App>,
}

/// An open listener.
#[derive(Debug)]
pub struct Listening {
    address: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<std::io::Result<()>>,
    socket: Option<PathBuf>,
}

impl Server {
    /// The API of this node.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self { app: Arc::new(App::new(node)) }
    }

    /// Listens on a loopback address; requests need a key.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind_tcp(&self, address: SocketAddr) -> Result<Listening, ServerError> {
        if !address.ip().is_loopback() {
            return Err(ServerError::NotLoopback { address });
        }
        let failed = |source| ServerError::Bind { address: address.to_string(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection was closed at once");
            }
        });
        // The first listener's port is the one that addresses of previews are made with.
        let _ = self.app.port.set(bound.port());
        let (stop, stopped) = watch::channel(false);
        let router = self.router(app::Access::Key);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let task =
            tokio::spawn(async move { axum::serve(listener, service).with_graceful_shutdown(wait(stopped)).await });
        Ok(Listening { address: format!("http://{bound}"), stop, task, socket: None })
    }

    /// Listens on a socket that only root and its owner can open; requests need no key.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind_unix(&self, path: &Path) -> Result<Listening, ServerError> {
        let failed = |source| ServerError::Bind { address: path.display().to_string(), source };
        let listener = private_socket(path).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let router = self.router(app::Access::Owner);
        let task =
            tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(wait(stopped)).await });
        Ok(Listening { address: path.display().to_string(), stop, task, socket: Some(path.to_owned()) })
    }

    /// Verbs are part of a path's last component, which router patterns cannot express; so the one table is ours.
    fn router(&self, access: app::Access) -> Router {
        let app = Arc::clone(&self.app);
        Router::new().fallback(move |request| app::handle(Arc::clone(&app), access, request))
    }
}

/// Under a temporary name until nobody else can open it. What has the name is a leftover: the caller holds the lock.
fn private_socket(path: &Path) -> std::io::Result<UnixListener> {
    let temporary = path.with_extension("new");
    let _ = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

async fn wait(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

impl Listening {
    /// Where: an origin, or the socket's path.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Takes no more requests and waits for the open ones. Call [`Node::begin_closing`] first: it ends streams.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(STOP_WAIT, &mut self.task).await.is_err() {
            tracing::warn!(address = %self.address, "requests are cut off");
            self.task.abort();
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

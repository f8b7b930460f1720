//! `port-forward`: a port of this machine that leads to a port of a sandbox.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::signals::Signals;
use branchbox_client::Client;
use clap::Args;
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at once, below what a node lets one sandbox have; more wait to be accepted.
const CONNECTIONS_MAX: usize = 30;
/// Wait after an accept that failed, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lead a port of this machine to a port of a sandbox, until interrupted.
///
/// Prints the address on this machine. Connections are to its loopback only; at most 30 are open at once, more wait.
///
/// Example: `branchbox port-forward web 8080:8000`
#[derive(Debug, Args)]
pub struct PortForwardArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// Port here and port inside; with one number both are it, and 0 here is any free port
    #[arg(value_name = "LOCAL:REMOTE", value_parser = ports)]
    pub ports: (u16, u16),
}

/// Where it can be reached.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forwarded {
    address: SocketAddr,
    port: u16,
}

impl PortForwardArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused, and a port here that is taken.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot forward to sandbox `{}`", self.sandbox);
        session.client.get(&id).await.map_err(|error| refused(&what, error))?;
        let (local, remote) = self.ports;
        let taken = |error| Fault::failed(format!("cannot listen on 127.0.0.1:{local}")).because(&error);
        let mut signals = Signals::listen()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, local)).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        match session.form {
            Form::Json => output::json(&Forwarded { address, port: remote }),
            Form::Text => output::data(&format!("{address}\n")),
        }
        output::note(&format!("leads to port {remote} of `{}`; Ctrl-C ends it\n", self.sandbox));
        let client = session.client.clone();
        tokio::select! {
            () = accept_all(&listener, &client, &id, remote) => Ok(Exit::Internal),
            () = signals.next() => Ok(Exit::Interrupted),
        }
    }
}

async fn accept_all(listener: &TcpListener, client: &Client, id: &str, remote: u16) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((local, _)) => {
                let (client, id) = (client.clone(), id.to_owned());
                tokio::spawn(async move {
                    carry(&client, &id, remote, local).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A connection that fails is told and ends; the others go on.
async fn carry(client: &Client, id: &str, remote: u16, mut local: TcpStream) {
    let carried = match client.tunnel(id, remote).await {
        Ok(tunnel) => tunnel.carry(&mut local).await,
        Err(error) => Err(error),
    };
    if let Err(error) = carried {
        // A reset, since an ordinary end would say that all of the answer has come.
        let _ = rustix::net::sockopt::set_socket_linger(&local, Some(Duration::ZERO));
        output::note(&refused(&format!("a connection to port {remote} failed"), error).text());
    }
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is no port"));
    match (port(local)?, port(remote)?) {
        (_, 0) => Err("the port inside is from 1 to 65535".into()),
        both => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use super::ports;

    #[test]
    fn one_number_is_both() {
        assert_eq!(ports("8000"), Ok((8000, 8000)));
        assert_eq!(ports("0:80"), Ok((0, 80)));
        for bad in ["", ":", "0", "80:0", "80:x", "70000", "1:2:3"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
    }
}

//! Whether a sandbox has a way out, found by looking and trying, never by remembering what was set up.
//!
//! A thread enters the sandbox's network namespace for a moment and looks at its interfaces and routes and at what the
//! kernel says to a connection (of UDP: nothing is sent). A check that always says "closed" would look just like a good
//! one, so the same look is also taken at a namespace that is open ([`control`]) before its answer counts.
//!
//! Deliberately not here: closing anything. A new network namespace is born closed.

use nix::sched::CloneFlags;
use rustix::thread::LinkNameSpaceType;
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

/// Addresses on the public internet, to ask the kernel for a route to.
const PUBLIC: [(&str, &str); 2] = [("0.0.0.0:0", "1.1.1.1:53"), ("[::]:0", "[2606:4700:4700::1111]:53")];
/// Route flag of IPv6 routes that only refuse.
const REJECT: u32 = 0x200;

/// A look that was not possible.
#[derive(Debug, thiserror::Error)]
pub enum ClosedError {
    /// A file, a namespace or a thread.
    #[error("{action}")]
    Look {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The look at an open namespace saw nothing open, so it proves nothing.
    #[error("the check for ways out does not see one where there is one")]
    Blind,
}

/// The ways out of one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaysOut {
    /// Interfaces but loopback.
    pub interfaces: Vec<String>,
    /// Routes that do more than loopback's own.
    pub routes: Vec<String>,
    /// Public addresses that the kernel would send to.
    pub reachable: Vec<&'static str>,
}

impl WaysOut {
    /// There is none.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.interfaces.is_empty() && self.routes.is_empty() && self.reachable.is_empty()
    }
}

/// Looks at the network namespace of a process.
///
/// # Errors
/// [`ClosedError::Look`].
pub fn look_at(pid: i32) -> Result<WaysOut, ClosedError> {
    let namespace =
        File::open(format!("/proc/{pid}/ns/net")).map_err(failed("open the sandbox's network namespace"))?;
    in_thread(move || {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| failed("enter the sandbox's network namespace")(e.into()))?;
        look()
    })
}

/// Whether a sandbox is closed; the answer counts only after the look was proved on an open namespace.
///
/// # Errors
/// [`ClosedError`]; then nothing is known, and nothing may be claimed.
pub fn is_enforced(pid: i32) -> Result<bool, ClosedError> {
    control()?;
    Ok(look_at(pid)?.is_closed())
}

/// The positive control: the caller's own namespace where that is open, else a new one with a default route.
///
/// # Errors
/// [`ClosedError::Blind`] when the look does not see the way out.
pub fn control() -> Result<(), ClosedError> {
    if !in_thread(look)?.is_closed() {
        return Ok(());
    }
    let open = in_thread(|| {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET).map_err(|e| failed("make a network namespace")(e.into()))?;
        branchbox_sys::netif::loopback_up().map_err(failed("bring loopback up"))?;
        branchbox_sys::netif::default_route_over_loopback().map_err(failed("add a default route"))?;
        look()
    })?;
    if open.is_closed() { Err(ClosedError::Blind) } else { Ok(()) }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> ClosedError {
    move |source| ClosedError::Look { action, source }
}

/// A namespace belongs to a thread, so the look is taken by one that ends after it.
fn in_thread(look: impl FnOnce() -> Result<WaysOut, ClosedError> + Send + 'static) -> Result<WaysOut, ClosedError> {
    let thread = std::thread::Builder::new().name("ways-out".into()).spawn(look).map_err(failed("start a thread"))?;
    thread.join().unwrap_or(Err(ClosedError::Blind))
}

/// The ways out of the calling thread's namespace.
fn look() -> Result<WaysOut, ClosedError> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let mut ways = WaysOut {
        interfaces: interfaces(&read("dev").map_err(failed("list interfaces"))?),
        routes: routes_v4(&read("route").map_err(failed("list routes"))?),
        reachable: Vec::new(),
    };
    // Not there where IPv6 is off.
    ways.routes.extend(read("ipv6_route").map(|text| routes_v6(&text)).unwrap_or_default());
    for (own, public) in PUBLIC {
        if UdpSocket::bind(own).and_then(|socket| socket.connect(public)).is_ok() {
            ways.reachable.push(public);
        }
    }
    Ok(ways)
}

fn interfaces(dev: &str) -> Vec<String> {
    // Two lines of headings, then `name: counters`.
    dev.lines()
        .skip(2)
        .filter_map(|l| Some(l.split_once(':')?.0.trim().to_owned()))
        .filter(|name| name != "lo")
        .collect()
}

/// `Iface Destination Gateway …`, numbers in hexadecimal; loopback's own routes are in another table and not listed.
fn routes_v4(text: &str) -> Vec<String> {
    text.lines().skip(1).filter(|l| !l.trim().is_empty()).map(str::to_owned).collect()
}

/// `destination length source length next-hop metric references use flags device`.
fn routes_v6(text: &str) -> Vec<String> {
    let leaves = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (Some(length), Some(flags), Some(device)) = (fields.get(1), fields.get(8), fields.get(9)) else {
            return true;
        };
        let refuses = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & REJECT != 0);
        // Loopback's own routes are for single addresses.
        !refuses && (*device != "lo" || *length != "80")
    };
    text.lines().filter(|l| !l.trim().is_empty()).filter(leaves).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_alone_is_no_way_out() {
        let dev = "Inter-| Receive\n face |bytes\n    lo:       0       0\n";
        assert!(interfaces(dev).is_empty());
        assert_eq!(interfaces(&format!("{dev}  eth0: 1 2\n")), ["eth0"]);
        let own = "00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00200001       lo";
        let refusing = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo";
        let default = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0";
        assert!(routes_v6(&format!("{own}\n{refusing}\n")).is_empty());
        assert_eq!(routes_v6(default).len(), 1);
        assert_eq!(routes_v4("Iface\tDestination\nlo\t00000000\n").len(), 1);
    }
}

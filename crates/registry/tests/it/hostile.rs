//! What no honest registry does: bodies without end, redirects to elsewhere, connections that break off.

use crate::image::{Image, OCI_MANIFEST, digest};
use crate::support::{
    Hostile, Request, broken, credentials, names_in, options, pull_once, pull_with, reply, serve_image,
};
use branchbox_registry::limits::{BLOB_TRIES, MANIFEST_BYTES_MAX, REDIRECTS_MAX};
use branchbox_registry::{Options, RegistryError};
use std::io::{Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

fn image() -> Image {
    Image::oci("amd64", &[b"one layer of sixty-four bytes and some, for all that it matters.."])
}

fn asks_for_layer(request: &Request) -> bool {
    request.path().ends_with(&digest(&image().layers[0]))
}

/// Chunks until the other side has had enough.
fn without_end(stream: &mut TcpStream, headers: &str) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{headers}\r\n")?;
    loop {
        stream.write_all(b"1000\r\n")?;
        stream.write_all(&[b' '; 0x1000])?;
        stream.write_all(b"\r\n")?;
    }
}

#[test]
fn a_redirect_elsewhere_takes_no_password_along() {
    let storage = Hostile::start(|request, stream| serve_image(&image(), request, stream));
    let to = storage.address.clone();
    let registry = Hostile::start(move |request, stream| match request.header("authorization") {
        None => reply(stream, "401 Unauthorized", "www-authenticate: Basic realm=\"r\"\r\n", b""),
        Some(_) if request.path().contains("/blobs/") => {
            reply(stream, "307 Temporary Redirect", &format!("location: http://{to}{}\r\n", request.path()), b"")
        }
        Some(_) => serve_image(&image(), request, stream),
    });
    let right = credentials("right");
    pull_once(&registry.name("app"), &Options { credentials: Some(&right), ..options() }).unwrap();
    let there = storage.asked();
    assert_eq!(there.len(), 2);
    assert!(there.iter().all(|request| request.header("authorization").is_none()), "{there:?}");
    let here = registry.asked();
    assert!(here.iter().skip(1).all(|request| request.header("authorization").is_some()), "{here:?}");
}

#[test]
fn storage_that_asks_for_a_login_gets_none() {
    let storage = Hostile::start(|_, stream| {
        reply(stream, "401 Unauthorized", "www-authenticate: Basic realm=\"mine\"\r\n", b"")
    });
    let to = storage.address.clone();
    let registry = Hostile::start(move |request, stream| {
        reply(stream, "302 Found", &format!("location: http://{to}{}\r\n", request.path()), b"")
    });
    let right = credentials("right");
    let error = pull_once(&registry.name("app"), &Options { credentials: Some(&right), ..options() }).unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { .. }), "{error}");
    assert!(storage.asked().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn redirects_end() {
    let server =
        Hostile::start(|request, stream| reply(stream, "302 Found", &format!("location: {}\r\n", request.path()), b""));
    assert!(broken(pull_once(&server.name("app"), &options())).contains("redirects"));
    assert_eq!(server.asked().len(), REDIRECTS_MAX + 1);
    for location in ["http://reg.example/x", "file:///etc/passwd", "", "x"] {
        let server =
            Hostile::start(move |_, stream| reply(stream, "302 Found", &format!("location: {location}\r\n"), b""));
        assert!(broken(pull_once(&server.name("app"), &options())).contains("not HTTPS"));
    }
}

#[test]
fn bodies_without_end_are_left() {
    let type_of = format!("content-type: {OCI_MANIFEST}\r\n");
    let server = Hostile::start(move |_, stream| without_end(stream, &type_of));
    let what = broken(pull_once(&server.name("app"), &options()));
    assert!(what.contains(&format!("the manifest is larger than {MANIFEST_BYTES_MAX} bytes")), "{what}");
    let server = Hostile::start(|request, stream| {
        if asks_for_layer(request) { without_end(stream, "") } else { serve_image(&image(), request, stream) }
    });
    assert!(broken(pull_once(&server.name("app"), &options())).contains("is larger than"));
    let server = Hostile::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        (0..).try_for_each(|n| write!(stream, "x-{n}: {n}\r\n"))
    });
    assert!(pull_once(&server.name("app"), &options()).is_err(), "headers without end");
}

#[test]
fn sizes_and_contents_that_are_not_as_named_are_refused() {
    for (change, part) in [(-1_i64, "bytes more to come"), (1, "bytes more to come"), (i64::MAX, "larger than")] {
        let server = Hostile::start(move |request, stream| {
            let mut image = image();
            let mut manifest: serde_json::Value = serde_json::from_slice(&image.manifest).unwrap();
            let size = manifest["layers"][0]["size"].as_i64().unwrap();
            manifest["layers"][0]["size"] = size.saturating_add(change).into();
            image.manifest = manifest.to_string().into_bytes();
            serve_image(&image, request, stream)
        });
        let what = broken(pull_once(&server.name("app"), &options()));
        assert!(what.contains(part), "{what}");
    }
    let header = format!("docker-content-digest: {}\r\n", digest(b"another"));
    let server = Hostile::start(move |_, stream| reply(stream, "200 OK", &header, &image().manifest));
    assert!(broken(pull_once(&server.name("app"), &options())).contains("is in truth"));
    let other = format!("app@{}", digest(b"another"));
    let server = Hostile::start(|_, stream| reply(stream, "200 OK", "", &image().manifest));
    assert!(broken(pull_once(&server.name(&other), &options())).contains("is in truth"));
    let server = Hostile::start(|_, stream| reply(stream, "200 OK", "", b"{\"schemaVersion\":1}"));
    assert!(broken(pull_once(&server.name("app"), &options())).contains("schema 1"));
    let server = Hostile::start(|_, stream| stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n"));
    assert!(broken(pull_once(&server.name("app"), &options())).contains("no HTTP"));
}

/// Sends the first half of a layer and hangs up, then what `rest` does.
fn breaks_off_once(rest: fn(&Request, &mut TcpStream) -> Result<()>) -> Hostile {
    let broke = AtomicBool::new(false);
    Hostile::start(move |request, stream| {
        if !asks_for_layer(request) {
            return serve_image(&image(), request, stream);
        }
        if broke.swap(true, Ordering::SeqCst) {
            return rest(request, stream);
        }
        let layer = &image().layers[0];
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", layer.len())?;
        stream.write_all(&layer[..layer.len() / 2])
    })
}

#[test]
fn a_layer_goes_on_where_the_connection_broke_off() {
    let server = breaks_off_once(|_, stream| {
        let layer = &image().layers[0];
        let (half, whole) = (layer.len() / 2, layer.len());
        let range = format!("content-range: bytes {half}-{}/{whole}\r\n", whole - 1);
        reply(stream, "206 Partial Content", &range, &layer[half..])
    });
    pull_once(&server.name("app"), &options()).unwrap();
    let asked = server.asked();
    let wanted = format!("bytes={}-", image().layers[0].len() / 2);
    assert_eq!(asked.last().unwrap().header("range"), Some(wanted.as_str()));
    let from_the_start = breaks_off_once(|request, stream| serve_image(&image(), request, stream));
    pull_once(&from_the_start.name("app"), &options()).unwrap();
    let from_elsewhere = breaks_off_once(|_, stream| {
        let range = "content-range: bytes 1-2/65\r\n";
        reply(stream, "206 Partial Content", range, b"ab")
    });
    assert!(broken(pull_once(&from_elsewhere.name("app"), &options())).contains("another place"));
}

#[test]
fn a_connection_that_always_breaks_off_is_given_up() {
    let server = Hostile::start(|request, stream| {
        if !asks_for_layer(request) {
            return serve_image(&image(), request, stream);
        }
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", image().layers[0].len())
    });
    let into = tempfile::tempdir().unwrap();
    let error = pull_with(&server.name("app"), into.path(), &options()).0.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { source: Some(_), .. }), "{error}");
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|request| asks_for_layer(request)).count(), BLOB_TRIES as usize);
    assert_eq!(names_in(into.path()).len(), 2, "manifest and config");
}

#[test]
fn nobody_there_and_not_now_are_told_apart_from_broken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = pull_once(&format!("{address}/app"), &options()).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { source: Some(_), .. }), "{error}");
    for (status, is_later) in [("429 Too Many", true), ("503 No", true), ("400 No", false), ("204 No", false)] {
        let body: &[u8] = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;
        let server = Hostile::start(move |_, stream| reply(stream, status, "", body));
        let error = pull_once(&server.name("app"), &options()).unwrap_err();
        assert_eq!(matches!(error, RegistryError::Unreachable { source: None, .. }), is_later, "{error}");
        assert_eq!(matches!(error, RegistryError::Broken { .. }), !is_later, "{error}");
        assert_eq!(error.to_string().contains("(slow down)"), !status.starts_with("204"), "{error}");
    }
}

#[test]
fn a_pull_can_be_ended_from_outside() {
    let server = Hostile::start(|request, stream| serve_image(&image(), request, stream));
    let flag = AtomicBool::new(false);
    let reference = server.name("app").parse().unwrap();
    let into = tempfile::tempdir().unwrap();
    let options = Options { cancelled: Some(&flag), ..options() };
    let result = branchbox_registry::pull(&reference, into.path(), &options, &mut |progress| {
        flag.store(progress == branchbox_registry::Progress::Config, Ordering::SeqCst);
    });
    assert!(matches!(result, Err(RegistryError::Cancelled { .. })), "{result:?}");
    assert_eq!(names_in(into.path()).len(), 1, "the manifest");
}

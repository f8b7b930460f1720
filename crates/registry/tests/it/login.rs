//! Logging in: the real registry with a password file, and a token server that watches what it is told.

use crate::image::Image;
use crate::support::{Door, Hostile, Registry, broken, credentials, options, pull_once, reply, serve_image};
use branchbox_registry::{Options, RegistryError};
use std::sync::{Arc, OnceLock};

/// `ann:right`
const ANN: &str = "Basic YW5uOnJpZ2h0";

#[test]
fn a_password_is_asked_for_and_checked() {
    let Some(registry) = Registry::start(&Door::Password) else { return };
    registry.push("app", "latest", &Image::oci("amd64", &[b"one"]));
    let (right, wrong) = (credentials("right"), credentials("wrong"));
    for given in [None, Some(&wrong)] {
        let error = pull_once(&registry.name("app"), &Options { credentials: given, ..options() }).unwrap_err();
        assert!(matches!(error, RegistryError::Unauthorized { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
    }
    let pulled = pull_once(&registry.name("app"), &Options { credentials: Some(&right), ..options() }).unwrap();
    assert_eq!(pulled.layers.len(), 1);
}

/// A registry and its token server in one; the token is good for so many requests.
fn token_server(image: Image, tokens_last: usize) -> Hostile {
    let address = Arc::new(OnceLock::new());
    let own = Arc::clone(&address);
    let (given, used) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let server = Hostile::start(move |request, stream| {
        if request.path().starts_with("/token") {
            given.set(given.get() + 1);
            used.set(0);
            return reply(stream, "200 OK", "", format!("{{\"token\":\"t{}\"}}", given.get()).as_bytes());
        }
        let is_good = request.header("authorization") == Some(&format!("Bearer t{}", given.get()));
        if is_good && used.get() < tokens_last {
            used.set(used.get() + 1);
            return serve_image(&image, request, stream);
        }
        let realm = format!("http://{}/token?a=1", own.get().unwrap());
        let asked = format!(
            "www-authenticate: Bearer realm=\"{realm}\",service=\"my service\",scope=\"repository:app:pull\"\r\n"
        );
        reply(stream, "401 Unauthorized", &asked, b"")
    });
    address.set(server.address.clone()).unwrap();
    server
}

#[test]
fn a_token_is_fetched_and_used() {
    let right = credentials("right");
    for given in [None, Some(&right)] {
        let server = token_server(Image::oci("amd64", &[b"one", b"two"]), usize::MAX);
        pull_once(&server.name("app"), &Options { credentials: given, ..options() }).unwrap();
        let asked = server.asked();
        let tokens: Vec<_> = asked.iter().filter(|request| request.path().starts_with("/token")).collect();
        assert_eq!(tokens.len(), 1);
        assert_eq!(tokens[0].path(), "/token?a=1&service=my%20service&scope=repository%3Aapp%3Apull");
        assert_eq!(tokens[0].header("authorization"), given.map(|_| ANN));
        let others = asked.iter().filter(|request| request.path().starts_with("/v2"));
        let told: Vec<_> = others.map(|request| request.header("authorization")).collect();
        assert_eq!(told, [None, Some("Bearer t1"), Some("Bearer t1"), Some("Bearer t1"), Some("Bearer t1")]);
    }
}

#[test]
fn a_token_that_runs_out_is_replaced() {
    let server = token_server(Image::oci("amd64", &[b"one", b"two"]), 2);
    pull_once(&server.name("app"), &options()).unwrap();
    assert_eq!(server.asked().iter().filter(|request| request.path().starts_with("/token")).count(), 2);
}

#[test]
fn a_token_that_is_never_good_ends_the_pull() {
    let server = token_server(Image::oci("amd64", &[b"one"]), 0);
    let error = pull_once(&server.name("app"), &options()).unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { .. }), "{error}");
    assert_eq!(server.asked().len(), 3, "the manifest, a token, the manifest");
}

#[test]
fn a_realm_in_the_open_is_told_nothing() {
    let right = credentials("right");
    for realm in ["http://token.example/t", "ftp://127.0.0.1/t", "//127.0.0.1/t", "https://a:b@127.0.0.1/t"] {
        let server = Hostile::start(move |_, stream| {
            reply(stream, "401 Unauthorized", &format!("www-authenticate: Bearer realm=\"{realm}\"\r\n"), b"")
        });
        let what = broken(pull_once(&server.name("app"), &Options { credentials: Some(&right), ..options() }));
        assert!(what.contains("not HTTPS"), "{what}");
        assert_eq!(server.asked().len(), 1);
    }
}

#[test]
fn a_login_that_is_not_known_is_refused_politely() {
    for (asked, status) in
        [("", "401 Unauthorized"), ("www-authenticate: Negotiate\r\n", "401 Unauthorized"), ("", "403 Forbidden")]
    {
        let server = Hostile::start(move |_, stream| {
            let body = br#"{"errors":[{"code":"DENIED","message":"not \u001b[31myours"}]}"#;
            reply(stream, status, asked, body)
        });
        let error = pull_once(&server.name("app"), &options()).unwrap_err();
        assert!(matches!(error, RegistryError::Unauthorized { .. }), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
        if status.starts_with("403") {
            assert!(error.to_string().contains("not [31myours"), "{error}");
        }
    }
}

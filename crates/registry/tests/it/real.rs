//! The real registry, with anonymous access, and over TLS.

use crate::image::{DOCKER_LAYER, DOCKER_LIST, Image, OCI_INDEX, OCI_LAYER};
use crate::support::{Door, Hostile, Registry, broken, names_in, options, pull_once, pull_with, reply};
use branchbox_registry::{Options, PARTIAL_PREFIX, Progress, RegistryError};

/// Bytes that do not repeat, more than one step of progress.
fn large() -> Vec<u8> {
    (0..700_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

#[test]
fn an_oci_image_comes_whole_and_in_order() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::oci("amd64", &[b"bottom", &large(), b"top"]);
    registry.push("team/app", "1.0", &image);
    let into = tempfile::tempdir().unwrap();
    let (pulled, told) = pull_with(&registry.name("team/app:1.0"), into.path(), &options());
    let pulled = pulled.unwrap();
    assert_eq!((&pulled.manifest_digest, &pulled.resolved_digest), (&image.digest(), &image.digest()));
    assert_eq!(pulled.config, image.config);
    let contents: Vec<Vec<u8>> = pulled.layers.iter().map(|layer| fs_err::read(&layer.path).unwrap()).collect();
    assert_eq!(contents, image.layers);
    assert!(pulled.layers.iter().all(|layer| layer.media_type == OCI_LAYER));
    assert_eq!(names_in(into.path()).len(), 5, "manifest, config, three layers and no leftover");
    assert_eq!(told[..2], [Progress::Manifest, Progress::Config]);
    let of = |digest: &str| -> Vec<(u64, u64)> {
        let layer = |progress: &Progress| match progress {
            Progress::Layer { digest: of, bytes, of: whole } if of == digest => Some((*bytes, *whole)),
            _ => None,
        };
        told.iter().filter_map(layer).collect()
    };
    let middle = of(&pulled.layers[1].digest);
    assert!(middle.len() >= 2 && middle.is_sorted(), "{middle:?}");
    assert_eq!(middle.last(), Some(&(2_800_000, 2_800_000)));
}

#[test]
fn what_is_there_is_not_loaded_again() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::oci("amd64", &[b"bottom", b"top"]);
    registry.push("app", "latest", &image);
    let into = tempfile::tempdir().unwrap();
    let first = pull_with(&registry.name("app"), into.path(), &options()).0.unwrap();
    // One is gone here and one is damaged here; of the registry's own files only those two are left.
    fs_err::remove_file(&first.layers[0].path).unwrap();
    fs_err::write(&first.layers[1].path, b"tip").unwrap();
    fs_err::remove_file(registry.stored(&crate::image::digest(&image.config))).unwrap();
    let again = pull_with(&registry.name("app"), into.path(), &options()).0.unwrap();
    assert_eq!(again, first);
    assert_eq!(fs_err::read(&again.layers[0].path).unwrap(), b"bottom");
    assert_eq!(fs_err::read(&again.layers[1].path).unwrap(), b"top");
    let name = registry.name(&format!("app@{}", image.digest()));
    drop(registry);
    assert_eq!(pull_with(&name, into.path(), &options()).0.unwrap(), first, "it is all there, so nobody is asked");
}

#[test]
fn localhost_is_spoken_to_in_the_open() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    registry.push("app", "latest", &Image::oci("amd64", &[b"one"]));
    let port = registry.address.rsplit(':').next().unwrap();
    assert_eq!(pull_once(&format!("localhost:{port}/app"), &options()).unwrap().layers.len(), 1);
}

#[test]
fn a_docker_image_comes_too() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::docker(&[b"one"]);
    registry.push("app", "v2", &image);
    let pulled = pull_once(&registry.name("app:v2"), &options()).unwrap();
    assert_eq!((pulled.manifest_digest, pulled.layers.len()), (image.digest(), 1));
    assert_eq!(pulled.layers[0].media_type, DOCKER_LAYER);
}

#[test]
fn of_an_index_our_platform_comes() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let (ours, other) = (Image::oci("amd64", &[b"ours"]), Image::oci("arm64", &[b"other"]));
    registry.push("app", "ours", &ours);
    registry.push("app", "other", &other);
    for (tag, media_type) in [("oci", OCI_INDEX), ("list", DOCKER_LIST)] {
        let index = Image::index(media_type, &[("arm64", &other), ("amd64", &ours)]);
        registry.put_manifest("app", tag, media_type, &index);
        let pulled = pull_once(&registry.name(&format!("app:{tag}")), &options()).unwrap();
        assert_eq!(pulled.manifest_digest, ours.digest());
        assert_eq!(pulled.resolved_digest, crate::image::digest(&index));
        let exact = registry.name(&format!("app@{}", pulled.resolved_digest));
        assert_eq!(pull_once(&exact, &options()).unwrap().manifest_digest, ours.digest());
    }
    let elsewhere = Image::index(OCI_INDEX, &[("arm64", &other)]);
    registry.put_manifest("app", "elsewhere", OCI_INDEX, &elsewhere);
    assert!(broken(pull_once(&registry.name("app:elsewhere"), &options())).contains("not there for linux/amd64"));
    assert!(broken(pull_once(&registry.name("app:other"), &options())).contains("it is for linux/arm64"));
}

#[test]
fn a_digest_names_the_image_and_what_is_not_there_is_not_found() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::oci("amd64", &[b"one"]);
    registry.push("app", "latest", &image);
    let exact = registry.name(&format!("app@{}", image.digest()));
    assert_eq!(pull_once(&exact, &options()).unwrap().manifest_digest, image.digest());
    let absent = crate::image::digest(b"absent");
    for name in ["app:absent", "absent", &format!("app@{absent}")] {
        let error = pull_once(&registry.name(name), &options()).unwrap_err();
        assert!(matches!(error, RegistryError::NotFound { .. }), "{name}: {error}");
        assert!(error.to_string().contains(&registry.address), "{error}");
    }
}

#[test]
fn what_the_registry_damaged_is_refused() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::oci("amd64", &[b"bottom", b"top"]);
    registry.push("app", "latest", &image);
    let layer = registry.stored(&crate::image::digest(b"top"));
    let into = tempfile::tempdir().unwrap();
    fs_err::write(&layer, b"tip").unwrap();
    let what = broken(pull_with(&registry.name("app"), into.path(), &options()).0);
    assert!(what.contains("is in truth"), "{what}");
    assert!(!names_in(into.path()).iter().any(|name| name.starts_with(PARTIAL_PREFIX)));
    assert_eq!(names_in(into.path()).len(), 3, "what came whole before stays");
    for (content, part) in [(&b"to"[..], "not 3"), (b"topmost", "not 3")] {
        fs_err::write(&layer, content).unwrap();
        let what = broken(pull_once(&registry.name("app"), &options()));
        assert!(what.contains(part), "{what}");
    }
    fs_err::remove_file(&layer).unwrap();
    assert!(broken(pull_once(&registry.name("app"), &options())).contains("it has no blob"));
    fs_err::write(registry.stored(&image.digest()), [&image.manifest[..], b" "].concat()).unwrap();
    let by_digest = registry.name(&format!("app@{}", image.digest()));
    assert!(pull_once(&by_digest, &options()).is_err());
}

#[test]
fn an_image_larger_than_allowed_is_not_begun() {
    let Some(registry) = Registry::start(&Door::Open) else { return };
    let image = Image::oci("amd64", &[&large()]);
    registry.push("app", "latest", &image);
    let sum = (image.config.len() + image.layers[0].len()) as u64;
    let into = tempfile::tempdir().unwrap();
    let tight = Options { bytes_max: sum - 1, ..options() };
    let (result, told) = pull_with(&registry.name("app"), into.path(), &tight);
    assert!(broken(result).contains("larger than"));
    assert_eq!((told, names_in(into.path()).len()), (vec![Progress::Manifest], 1));
    assert!(pull_once(&registry.name("app"), &Options { bytes_max: sum, ..options() }).is_ok());
}

#[test]
fn tls_is_spoken_and_checked() {
    let Some(registry) = Registry::start(&Door::Tls) else { return };
    let ca_file = registry.ca_file();
    let trusting = Options { ca_file: Some(&ca_file), ..options() };
    let image = Image::oci("amd64", &[b"bottom", &large()]);
    registry.push("app", "latest", &image);
    assert_eq!(pull_once(&registry.name("app"), &trusting).unwrap().manifest_digest, image.digest());
    let other = Registry::start(&Door::Tls).unwrap();
    let error = pull_once(&other.name("app"), &trusting).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    let plain = Hostile::start(|_, stream| reply(stream, "200 OK", "", b""));
    let error = pull_once(&plain.name("app"), &trusting).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    assert!(plain.asked().iter().all(|request| !request.path().contains("v2")), "nothing was said in the open");
}

//! `images ls | get | import | pull | build | logs | tag | untag | rm`.

use super::each;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::progress;
use crate::table::Table;
use crate::text::{age, bytes, pair};
use branchbox_api::image::ArchiveRef;
use branchbox_api::{ImageInfo, ImageState};
use branchbox_model::Timestamp;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Between two looks at an image that is being made.
const POLL: Duration = Duration::from_millis(200);
/// Images of one listing.
const LISTED_MAX: usize = 1000;

/// Bring, build and keep images that sandboxes start from
#[derive(Debug, Subcommand)]
pub enum ImagesVerb {
    /// List images, newest first.
    ///
    /// Example: `branchbox images ls`
    #[command(visible_alias = "list")]
    Ls {
        /// Only the versions of this name
        name: Option<String>,
    },
    /// Show one image.
    ///
    /// Example: `branchbox images get alpine:3.23`
    Get {
        /// The image: id, name, name:tag or name@version
        image: String,
    },
    /// Make an image of a directory, a root filesystem's tarball, or an OCI or docker archive
    ///
    /// Compression by gzip, zstd or xz is seen by itself, and so is what an archive holds.
    ///
    /// Example: `branchbox images import ./rootfs --name debian`
    Import {
        /// A directory or a file; `oci-archive:` and `docker-archive:` may stand before it; `-` is standard input
        source: String,
        #[command(flatten)]
        named: Named,
    },
    /// Make an image of one in a registry
    ///
    /// Registries on this machine's own loopback are asked over plain HTTP, all others over HTTPS.
    ///
    /// Example: `branchbox images pull alpine:3.23`
    Pull {
        /// Such as `alpine`, `ghcr.io/owner/app:1` or `localhost:5000/app@sha256:…`
        reference: String,
        #[command(flatten)]
        named: Named,
    },
    Build(BuildArgs),
    /// Show what was said while an image was made.
    ///
    /// Example: `branchbox images logs app`
    Logs {
        /// The image: id, name, name:tag or name@version
        image: String,
    },
    /// Point a tag of the image's name at it.
    ///
    /// Example: `branchbox images tag app@3 stable`
    Tag {
        /// The image: id, name, name:tag or name@version
        image: String,
        /// The tag
        tag: String,
    },
    /// Take a tag away from an image.
    ///
    /// Example: `branchbox images untag app@3 stable`
    Untag {
        /// The image: id, name, name:tag or name@version
        image: String,
        /// The tag
        tag: String,
    },
    /// Delete images; sandboxes and snapshots that stand on them keep their files.
    ///
    /// Example: `branchbox images rm app@2`
    #[command(visible_alias = "delete")]
    Rm {
        /// Each an id, name, name:tag or name@version
        #[arg(required = true)]
        images: Vec<String>,
    },
}

/// How an image is called.
#[derive(Debug, Args)]
pub struct Named {
    /// Its name; each of the same name is another version
    #[arg(long)]
    pub name: Option<String>,
    /// A tag of the name, `latest` if none is given; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
}

/// Build an image from a Dockerfile
///
/// Example: `branchbox images build . --name app`
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The folder that COPY takes files from
    pub context: PathBuf,
    /// The Dockerfile, if it is not the one in that folder
    #[arg(short = 'f', long)]
    pub file: Option<PathBuf>,
    /// The stage to build, if it is not the last
    #[arg(long)]
    pub target: Option<String>,
    /// A value for an ARG; may be repeated
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = pair)]
    pub build_args: Vec<(String, String)>,
    /// Build again, also if the same was built before
    #[arg(long)]
    pub no_cache: bool,
    #[command(flatten)]
    pub named: Named,
}

impl Named {
    /// The fields of a request.
    fn body(&self, source: &str, value: Value) -> Map<String, Value> {
        let mut body = Map::from_iter([(source.to_owned(), value)]);
        if let Some(name) = &self.name {
            body.insert("name".into(), name.as_str().into());
        }
        if !self.tags.is_empty() {
            body.insert("tags".into(), json!(self.tags));
        }
        if !self.labels.is_empty() {
            let labels: Map<String, Value> =
                self.labels.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
            body.insert("labels".into(), labels.into());
        }
        body
    }

    /// The name and the tag that a reference gives, where nothing else is said.
    fn or_of(mut self, reference: &str) -> Self {
        if self.name.is_some() {
            return self;
        }
        let without_digest = reference.split('@').next().unwrap_or_default();
        let last = without_digest.rsplit('/').next().unwrap_or_default();
        let (name, tag) = last.split_once(':').map_or((last, None), |(name, tag)| (name, Some(tag)));
        self.name = Some(name.to_owned());
        if self.tags.is_empty() {
            self.tags = tag.map(str::to_owned).into_iter().collect();
        }
        self
    }
}

impl ImagesVerb {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        match self {
            Self::Ls { name } => list(session, name.as_deref()).await,
            Self::Get { image } => {
                show(session, &find(session, &image).await?);
                Ok(Exit::Done)
            }
            Self::Import { source, named } => import(session, &source, named).await,
            Self::Pull { reference, named } => {
                let body = named.or_of(&reference).body("image", reference.as_str().into());
                make(session, &format!("pull `{reference}`"), body).await
            }
            Self::Build(args) => args.run(session).await,
            Self::Logs { image } => logs(session, &image).await,
            Self::Tag { image, tag } => tag_it(session, &image, &tag, true).await,
            Self::Untag { image, tag } => tag_it(session, &image, &tag, false).await,
            Self::Rm { images } => Ok(each(session, &images, |text| remove(session, text)).await),
        }
    }
}

async fn find(session: &Session, text: &str) -> Result<ImageInfo, Fault> {
    session.client.image(text).await.map_err(|error| refused("cannot find the image", error))
}

async fn list(session: &Session, name: Option<&str>) -> Result<Exit, Fault> {
    let (mut images, mut cursor) = (Vec::new(), None::<String>);
    while images.len() < LISTED_MAX {
        let page = session.client.images(name, cursor.as_deref()).await;
        let page = page.map_err(|error| refused("cannot list the images", error))?;
        images.extend(page.data);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if session.form == Form::Json {
        output::json(&json!({ "data": images }));
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["ID", "NAME", "VERSION", "TAGS", "STATE", "SIZE", "AGE"]);
    let now = Timestamp::now();
    for image in images {
        table.row(vec![
            image.id,
            image.name.unwrap_or_default(),
            image.version.to_string(),
            image.tags.join(", "),
            state(image.state).into(),
            image.size_bytes.map(bytes).unwrap_or_default(),
            age(image.created_at, now),
        ]);
    }
    output::data(&table.text());
    if cursor.is_some() {
        output::note(&format!("these are the newest {LISTED_MAX}; there are more\n"));
    }
    Ok(Exit::Done)
}

fn state(state: ImageState) -> &'static str {
    match state {
        ImageState::Queued => "queued",
        ImageState::Building => "building",
        ImageState::Ready => "ready",
        ImageState::Failed => "failed",
        ImageState::Deleting => "deleting",
        ImageState::Deleted => "deleted",
    }
}

fn show(session: &Session, image: &ImageInfo) {
    if session.form == Form::Json {
        return output::json(image);
    }
    let name = image.name.as_ref().map(|name| format!("{name}@{}", image.version)).unwrap_or_default();
    let mut rows = vec![
        ("id", image.id.clone()),
        ("name", name),
        ("tags", image.tags.join(", ")),
        ("state", state(image.state).to_owned()),
        ("size", image.size_bytes.map(bytes).unwrap_or_default()),
        ("made from", image.source.reference.clone().unwrap_or_else(|| image.source.kind.clone())),
        ("files", image.source.identity.clone()),
        ("workdir", image.workdir.clone()),
        ("error", image.error.clone().unwrap_or_default()),
    ];
    rows.extend(image.env.iter().map(|(name, value)| ("env", format!("{name}={value}"))));
    rows.retain(|(_, value)| !value.is_empty());
    let text: String = rows.iter().map(|(name, value)| format!("{name:<10} {}\n", printable(value))).collect();
    output::data(&text);
}

async fn import(session: &Session, source: &str, named: Named) -> Result<Exit, Fault> {
    let path =
        ["oci-archive:", "docker-archive:"].iter().find_map(|prefix| source.strip_prefix(prefix)).unwrap_or(source);
    let what = format!("send `{source}`");
    let sent = progress::during(session.form, &what, send(session, Path::new(path))).await?;
    make(session, &format!("import `{source}`"), named.body("archive", json!(sent))).await
}

/// Sends a file, standard input, or a directory as an archive.
async fn send(session: &Session, path: &Path) -> Result<ArchiveRef, Fault> {
    let failed = |error| refused("cannot send the archive", error);
    let unreadable = |error: std::io::Error| Fault::failed(format!("cannot read `{}`", path.display())).because(&error);
    if path == Path::new("-") {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?;
        let stdin = tokio::fs::File::from_std(std::fs::File::from(stdin));
        return session.client.send_archive(stdin).await.map_err(failed);
    }
    let metadata = tokio::fs::metadata(path).await.map_err(unreadable)?;
    if !metadata.is_dir() {
        let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        return session.client.send_archive(file).await.map_err(failed);
    }
    // The program knows hard links, holes, devices and capabilities; what is mounted below is not of the directory.
    let mut words = tokio::process::Command::new("tar");
    words.args(["--numeric-owner", "--one-file-system", "--xattrs", "--xattrs-include=security.capability"]);
    words.args(["--xattrs-include=user.*", "-S", "-C"]).arg(path).args(["-cf", "-", "."]);
    packed(session, words).await
}

/// Sends what `tar` writes.
async fn packed(session: &Session, mut tar: tokio::process::Command) -> Result<ArchiveRef, Fault> {
    let spawned = tar.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|error| Fault::failed("cannot start `tar`").because(&error))?;
    let Some(output) = child.stdout.take() else { return Err(Fault::failed("`tar` has no output")) };
    let sent = session.client.send_archive(output).await.map_err(|error| refused("cannot send the archive", error))?;
    let ended = child.wait().await.map_err(|error| Fault::failed("cannot wait for `tar`").because(&error))?;
    if ended.success() { Ok(sent) } else { Err(Fault::failed(format!("`tar` failed: {ended}"))) }
}

impl BuildArgs {
    async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let file = self.file.clone().unwrap_or_else(|| self.context.join("Dockerfile"));
        let text = tokio::fs::read_to_string(&file).await;
        let text = text.map_err(|error| Fault::failed(format!("cannot read `{}`", file.display())).because(&error))?;
        let mut words = tokio::process::Command::new("tar");
        // The same folder gives the same archive, so that chunks of it are sent once.
        words.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-C"]);
        words.arg(&self.context).args(["--exclude=./.git", "-cf", "-", "."]);
        let what = format!("send `{}`", self.context.display());
        let sent = progress::during(session.form, &what, packed(session, words)).await?;
        let mut body = self.named.body("dockerfile", text.into());
        body.insert("context".into(), json!({ "archive": sent }));
        if let Ok(ignore) = tokio::fs::read_to_string(self.context.join(".dockerignore")).await {
            body.insert("dockerignore".into(), ignore.into());
        }
        if !self.build_args.is_empty() {
            let args: Map<String, Value> =
                self.build_args.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            body.insert("buildArgs".into(), args.into());
        }
        if let Some(target) = &self.target {
            body.insert("target".into(), target.as_str().into());
        }
        body.insert("cache".into(), (!self.no_cache).into());
        make(session, &format!("build `{}`", self.context.display()), body).await
    }
}

/// Begins to make an image and stays until it is made, showing what is said meanwhile on standard error.
async fn make(session: &Session, what: &str, body: Map<String, Value>) -> Result<Exit, Fault> {
    let failed = |error| refused(&format!("cannot {what}"), error);
    let begun = session.client.create_image(&body.into()).await.map_err(failed)?;
    let mut after = 0;
    loop {
        let page = session.client.image_log(&begun.id, after).await.map_err(failed)?;
        if session.form == Form::Text {
            page.lines.iter().for_each(|line| output::note(&format!("{}\n", printable(&line.text))));
        }
        after = page.next_after;
        if page.done {
            break;
        }
        if page.lines.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
    let image = find(session, &begun.id).await?;
    match (image.state, session.form) {
        (ImageState::Ready, Form::Text) => output::data(&format!("{}\n", image.id)),
        (ImageState::Ready, Form::Json) => output::json(&image),
        _ => {
            let why = image.error.unwrap_or_else(|| "nobody knows why".into());
            return Err(Fault::failed(format!("cannot {what}")).cause(printable(&why)).coded("image_build_failed"));
        }
    }
    Ok(Exit::Done)
}

async fn logs(session: &Session, text: &str) -> Result<Exit, Fault> {
    let (image, mut after) = (find(session, text).await?, 0);
    loop {
        let page = session.client.image_log(&image.id, after).await;
        let page = page.map_err(|error| refused("cannot read the log", error))?;
        for line in &page.lines {
            match session.form {
                Form::Json => output::json(line),
                Form::Text => output::data(&format!("{}\n", printable(&line.text))),
            }
        }
        after = page.next_after;
        if page.done {
            return Ok(Exit::Done);
        }
        if page.lines.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn tag_it(session: &Session, text: &str, tag: &str, on: bool) -> Result<Exit, Fault> {
    let id = find(session, text).await?.id;
    let image =
        session.client.tag_image(&id, tag, on).await.map_err(|error| refused("cannot change the tag", error))?;
    show(session, &image);
    Ok(Exit::Done)
}

async fn remove(session: &Session, text: String) -> Result<(), Fault> {
    let what = format!("cannot delete image `{text}`");
    let id = session.client.image(&text).await.map_err(|error| refused(&what, error))?.id;
    let removed = session.client.delete_image(&id).await.map_err(|error| refused(&what, error))?;
    if session.form == Form::Text {
        output::data(&format!("{} deleted\n", removed.id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_gives_name_and_tag() {
        let named = |reference: &str| {
            let named = Named { name: None, tags: Vec::new(), labels: Vec::new() }.or_of(reference);
            (named.name.unwrap_or_default(), named.tags)
        };
        assert_eq!(named("alpine"), ("alpine".into(), vec![]));
        assert_eq!(named("localhost:5000/a/b:1.2@sha256:00"), ("b".into(), vec!["1.2".into()]));
        let own = Named { name: Some("x".into()), tags: Vec::new(), labels: Vec::new() }.or_of("alpine:3");
        assert_eq!((own.name.as_deref(), own.tags.len()), (Some("x"), 0));
    }
}

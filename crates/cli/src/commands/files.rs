//! `cp`, `cat`, `files`: what lies in a sandbox.
//!
//! A path in a sandbox is written `ID:/path`. Files keep their permission bits; folders travel as archives, and one that comes
//! out of a sandbox is hostile: nothing of it is written outside the folder it is unpacked into.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::progress::during;
use crate::table::Table;
use crate::text::bytes;
use branchbox_api::FileEntryType;
use branchbox_client::ClientError;
use bytes::Bytes;
use clap::Args;
use std::io::{Read, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::NamedTempFile;

/// Copy files and folders into a sandbox or out of it.
///
/// One of the two is in a sandbox: `ID:/path`. `-` is standard input or output.
///
/// Example: `branchbox cp ./repo web:/workspace/repo`
#[derive(Debug, Args)]
pub struct CpArgs {
    /// From
    pub source: String,
    /// To
    pub target: String,
}

/// Print a file of a sandbox.
///
/// Example: `branchbox cat web /workspace/result.json`
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The file
    pub path: String,
}

/// List a folder of a sandbox.
///
/// Example: `branchbox files web /workspace --depth 2 --glob '*.py'`
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The folder
    #[arg(default_value = "/workspace")]
    pub path: String,
    /// How many levels
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub depth: u32,
    /// Only names that match
    #[arg(long)]
    pub glob: Option<String>,
}

/// A path in a sandbox: `ID:/path`.
fn remote(text: &str) -> Option<(&str, &str)> {
    let (id, path) = text.split_once(':')?;
    // `./a:/b` and `/a:/b` are files of this machine.
    (path.starts_with('/') && !id.is_empty() && !id.contains('/')).then_some((id, path))
}

fn local(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Fault {
    let path = path.display().to_string();
    move |error| Fault::failed(format!("cannot {what} `{path}`")).because(&error)
}

impl CpArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node or this machine refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        match (remote(&self.source), remote(&self.target)) {
            (None, Some((text, path))) => into(session, &self.source, text, path).await,
            (Some((text, path)), None) => out(session, text, path, &self.target).await,
            (Some(_), Some(_)) => Err(Fault::usage("cannot copy from one sandbox into another")
                .hint("copy to this machine first, or fork the sandbox")),
            (None, None) => Err(Fault::usage("neither of the two is in a sandbox").hint("write it as ID:/path")),
        }
    }
}

async fn into(session: &Session, source: &str, text: &str, path: &str) -> Result<Exit, Fault> {
    let id = sandbox(session, text).await?;
    let what = format!("cannot copy into sandbox `{text}`");
    if source == "-" {
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut content)
            .map_err(|error| Fault::failed("cannot read standard input").because(&error))?;
        session.client.upload(&id, path, 0o644, &content.into()).await.map_err(|error| refused(&what, error))?;
        return Ok(Exit::Done);
    }
    let from = Path::new(source);
    let facts = fs_err::metadata(from).map_err(local("read", from))?;
    if facts.is_dir() {
        let archive = packed(from).map_err(local("pack", from))?;
        during(session.form, "copying in", session.client.unpack(&id, path, &archive))
            .await
            .map_err(|error| refused(&what, error))?;
        return Ok(Exit::Done);
    }
    let content = fs_err::read(from).map_err(local("read", from))?;
    // `cp file web:/folder/` and onto a folder that is there go into it.
    let is_folder = path.ends_with('/')
        || session
            .client
            .stat(&id, path)
            .await
            .map_err(|error| refused(&what, error))?
            .is_some_and(|entry| entry.kind == FileEntryType::Directory);
    let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let path = if is_folder { format!("{}/{name}", path.trim_end_matches('/')) } else { path.to_owned() };
    let mode = facts.permissions().mode() & 0o777;
    during(session.form, "copying in", session.client.upload(&id, &path, mode, &content.into()))
        .await
        .map_err(|error| refused(&what, error))?;
    Ok(Exit::Done)
}

/// A folder of this machine as an archive; links stay links.
fn packed(folder: &Path) -> std::io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    archive.append_dir_all(".", folder)?;
    Ok(archive.into_inner()?.into())
}

async fn out(session: &Session, text: &str, path: &str, target: &str) -> Result<Exit, Fault> {
    let id = sandbox(session, text).await?;
    let what = format!("cannot copy `{path}` out of sandbox `{text}`");
    let entry = session.client.stat(&id, path).await.map_err(|error| refused(&what, error))?;
    let Some(entry) = entry else { return Err(Fault::failed(what).cause("there is no such file")) };
    if entry.kind == FileEntryType::Directory {
        if target == "-" {
            return Err(Fault::usage("a folder cannot go to standard output"));
        }
        let mut archive = tempfile::tempfile().map_err(local("make a file in", &std::env::temp_dir()))?;
        during(session.form, "copying out", session.client.pack(&id, path, &mut archive))
            .await
            .map_err(|error| refused(&what, error))?;
        let unpacked = archive.rewind().and_then(|()| unpack(&archive, Path::new(target)));
        unpacked.map_err(local("unpack into", Path::new(target)))?;
        return Ok(Exit::Done);
    }
    if target == "-" {
        return to_output(session, &id, path, &what).await;
    }
    let mut to = Path::new(target).to_path_buf();
    if to.is_dir() {
        to.push(&entry.name);
    }
    let mode = u32::from_str_radix(&entry.mode, 8).unwrap_or(0o644) & 0o777;
    // The whole file or none: written beside the target and renamed.
    let mut file = beside(&to).map_err(local("write", &to))?;
    during(session.form, "copying out", session.client.download(&id, path, file.as_file_mut()))
        .await
        .map_err(|error| refused(&what, error))?;
    keep(file, mode, &to).map_err(local("write", &to))?;
    Ok(Exit::Done)
}

/// Prints a file as it comes. A reader that goes away ends it quietly, as everywhere.
async fn to_output(session: &Session, id: &str, path: &str, what: &str) -> Result<Exit, Fault> {
    match session.client.download(id, path, &mut std::io::stdout()).await {
        Err(ClientError::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        done => done.map(|()| Exit::Done).map_err(|error| refused(what, error)),
    }
}

fn beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    NamedTempFile::new_in(folder)
}

fn keep(file: NamedTempFile, mode: u32, path: &Path) -> std::io::Result<()> {
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Entries that lead out of the folder, by name or through a link, are refused by the archive's reader.
fn unpack(archive: impl Read, folder: &Path) -> std::io::Result<()> {
    fs_err::create_dir_all(folder)?;
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    archive.unpack(folder)
}

impl CatArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot read `{}` of sandbox `{}`", self.path, self.sandbox);
        to_output(session, &id, &self.path, &what).await
    }
}

impl FilesArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot list `{}` of sandbox `{}`", self.path, self.sandbox);
        let listed = session.client.files(&id, &self.path, self.depth, self.glob.as_deref()).await;
        let list = listed.map_err(|error| refused(&what, error))?;
        if session.form == Form::Json {
            output::json(&list);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["MODE", "SIZE", "MODIFIED", "PATH"]);
        for entry in &list.data {
            let size = if entry.kind == FileEntryType::File { bytes(entry.size) } else { String::new() };
            let mark = match entry.kind {
                FileEntryType::Directory => "/".to_owned(),
                FileEntryType::Symlink => format!(" -> {}", entry.symlink_target.as_deref().unwrap_or_default()),
                FileEntryType::File | FileEntryType::Other => String::new(),
            };
            let path = printable(&format!("{}{mark}", entry.path)).clone();
            table.row(vec![entry.mode.clone(), size, entry.modified_at.to_string(), path]);
        }
        output::data(&table.text());
        if list.truncated {
            output::note("and more; list a folder below, or use --glob\n");
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_sandbox_has_its_id_before_it() {
        assert_eq!(remote("web:/a/b"), Some(("web", "/a/b")));
        for here in ["web", "/a:/b", "./a:/b", "web:relative", ":/a", "-"] {
            assert_eq!(remote(here), None, "{here}");
        }
    }

    #[test]
    fn an_archive_of_a_sandbox_writes_nothing_outside_its_folder() {
        let root = tempfile::tempdir().expect("directory");
        let mut builder = tar::Builder::new(Vec::new());
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        builder.append_link(&mut link, "up", root.path()).expect("link");
        let mut file = tar::Header::new_gnu();
        file.set_size(1);
        file.set_mode(0o644);
        builder.append_data(&mut file, "up/outside", &b"x"[..]).expect("file");
        let archive = builder.into_inner().expect("archive");
        let _ = unpack(&archive[..], &root.path().join("into"));
        assert!(!root.path().join("outside").exists());
    }
}

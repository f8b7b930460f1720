//! Why an image cannot be pulled, in classes that ask for different things of whoever asked.

use crate::reference::Reference;
use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A pull that failed. What a registry says of itself is repeated in part, without control characters.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The registry answers and has no such manifest.
    #[error("{registry} has no `{repository}` with the name `{name}`")]
    NotFound {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
        /// The tag or digest.
        name: String,
    },
    /// Credentials are missing, wrong or not enough. Public registries say this of repositories they do not have, too.
    #[error("{registry} does not give `{repository}` away: {what}")]
    Unauthorized {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
        /// What was refused.
        what: String,
    },
    /// No connection, no TLS, no answer in time, or an answer such as 429 or 503: the same may work later.
    #[error("`{repository}` cannot be loaded from {registry}: {what}")]
    Unreachable {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
        /// What was being done, or the answer.
        what: String,
        /// The error of the connection, where there was one.
        #[source]
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The registry sent what cannot be right, is too large, or is not supported.
    #[error("what {registry} has as `{repository}` cannot be used: {what}")]
    Broken {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file on this machine.
    #[error("cannot keep `{repository}` from {registry} in {}", path.display())]
    Disk {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The caller wanted no more of it.
    #[error("the pull of `{repository}` from {registry} was cancelled")]
    Cancelled {
        /// The registry.
        registry: String,
        /// The repository there.
        repository: String,
    },
}

/// Makes errors that name the image.
impl Reference {
    fn names(&self) -> (String, String) {
        (self.registry().to_owned(), self.repository().to_owned())
    }

    pub(crate) fn not_found(&self) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::NotFound { registry, repository, name: self.manifest_name().to_owned() }
    }

    pub(crate) fn unauthorized(&self, what: impl Into<String>) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Unauthorized { registry, repository, what: what.into() }
    }

    pub(crate) fn broken(&self, what: impl Into<String>) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Broken { registry, repository, what: what.into() }
    }

    /// The registry answered, and the same request may work later.
    pub(crate) fn refused(&self, what: impl Into<String>) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Unreachable { registry, repository, what: what.into(), source: None }
    }

    pub(crate) fn unreachable(
        &self,
        what: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Unreachable { registry, repository, what: what.into(), source: Some(source.into()) }
    }

    pub(crate) fn disk(&self, path: impl Into<PathBuf>, source: io::Error) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Disk { registry, repository, path: path.into(), source }
    }

    pub(crate) fn cancelled(&self) -> RegistryError {
        let (registry, repository) = self.names();
        RegistryError::Cancelled { registry, repository }
    }
}

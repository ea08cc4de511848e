//! The Update Framework's client, over files in memory: what `tough` verifies, told by the names of our checks.
//!
//! The library's own store of metadata is a temporary folder, since it is not written safely against a cut of power; what is to be kept goes through the
//! store's own writing afterwards. Its clock is not asked either: see [`crate::clock`].

use futures_util::stream;
use serde::de::DeserializeOwned;
use skip_updates::{Check, Files, METADATA, Rejection};
use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tough::error::Error as TufError;
use tough::schema::{Role, Root, Signed, Snapshot, Targets};
use tough::{
    Bytes, ExpirationEnforcement, IntoVec, Limits, Repository, RepositoryLoader, TargetName, Transport, TransportError, TransportErrorKind,
    TransportStream, async_trait,
};
use url::Url;

/// Longest metadata of a role, bytes.
const MAX_METADATA: u64 = 1 << 20;
/// Most rotations of keys that one bundle leads over.
const MAX_ROOTS: u64 = 256;

/// A bundle whose metadata is signed by keys that are trusted here.
pub struct Verified {
    repository: Repository,
    files: Arc<Files>,
    scratch: TempDir,
}

/// Verifies the metadata of a bundle.
///
/// # Errors
/// The check that fails.
pub async fn load(files: Files, root: &[u8], known: &[Option<Vec<u8>>; 2]) -> Result<Verified, Rejection> {
    let scratch = tempfile::Builder::new().prefix("skip-update-").tempdir().map_err(|e| Rejection::io("a temporary folder", &e))?;
    for (name, bytes) in METADATA.iter().zip(known) {
        if let Some(bytes) = bytes {
            std::fs::write(scratch.path().join(name), bytes).map_err(|e| Rejection::io("a temporary folder", &e))?;
        }
    }
    let files = Arc::new(files);
    let limits = Limits {
        max_root_size: MAX_METADATA,
        max_targets_size: MAX_METADATA,
        max_timestamp_size: MAX_METADATA,
        max_snapshot_size: MAX_METADATA,
        max_root_updates: MAX_ROOTS,
    };
    let root = root.to_vec();
    let loader = RepositoryLoader::new(&root, base("metadata")?, base("targets")?)
        .transport(Memory(files.clone()))
        .datastore(scratch.path())
        .limits(limits)
        .expiration_enforcement(ExpirationEnforcement::Unsafe);
    let repository = match loader.load().await {
        Ok(repository) => repository,
        Err(error) => return Err(named(&error, &files, scratch.path())),
    };
    let delegates = repository.targets().signed.delegations.as_ref().is_some_and(|d| !d.roles.is_empty());
    if delegates {
        return Err(Rejection::new(Check::Schema, "targets: a bundle of tables delegates to nobody"));
    }
    Ok(Verified { repository, files, scratch })
}

impl Verified {
    /// The version that the targets' keys have signed.
    pub fn version(&self) -> u64 {
        self.repository.targets().signed.version.get()
    }

    /// The role that expired first before `now`, and when.
    pub fn expired(&self, now: u64) -> Option<(&'static str, u64)> {
        let seconds = |expires: i64| u64::try_from(expires).unwrap_or_default();
        let roles = [
            ("root", self.repository.root().signed.expires().as_second()),
            ("timestamp", self.repository.timestamp().signed.expires().as_second()),
            ("snapshot", self.repository.snapshot().signed.expires().as_second()),
            ("targets", self.repository.targets().signed.expires().as_second()),
        ];
        roles
            .into_iter()
            .map(|(role, expires)| (role, seconds(expires)))
            .filter(|&(_, expires)| expires <= now)
            .min_by_key(|&(_, expires)| expires)
    }

    /// A target's bytes, which are those that were signed.
    ///
    /// # Errors
    /// [`Check::Missing`] or [`Check::Hash`].
    pub async fn target(&self, name: &str) -> Result<Vec<u8>, Rejection> {
        let missing = || Rejection::new(Check::Missing, format!("{name} is not signed in this bundle"));
        let target = TargetName::new(name).map_err(|e| Rejection::new(Check::Path, e.to_string()))?;
        let failed = |error: &TufError| named(error, &self.files, self.scratch.path());
        let stream = self.repository.read_target(&target).await.map_err(|e| failed(&e))?.ok_or_else(missing)?;
        stream.into_vec().await.map_err(|e| failed(&e))
    }

    /// What is to be kept of the metadata, in the order of [`METADATA`], and the root it led to.
    ///
    /// # Errors
    /// What reading the temporary folder gives.
    pub fn into_metadata(self) -> Result<([Vec<u8>; 3], Vec<u8>), Rejection> {
        let read = |name: &str| std::fs::read(self.scratch.path().join(name)).map_err(|e| Rejection::io(name, &e));
        Ok(([read(METADATA[0])?, read(METADATA[1])?, read(METADATA[2])?], read("root.json")?))
    }
}

fn base(folder: &str) -> Result<Url, Rejection> {
    Url::parse(&format!("file:///{folder}/")).map_err(|e| Rejection::new(Check::Path, e.to_string()))
}

/// The bundle's files as a place to fetch from.
#[derive(Clone, Debug)]
struct Memory(Arc<Files>);

#[async_trait]
impl Transport for Memory {
    async fn fetch(&self, url: Url) -> Result<TransportStream, TransportError> {
        match self.0.get(url.path().trim_start_matches('/')) {
            Some(bytes) => Ok(Box::pin(stream::iter([Ok(Bytes::copy_from_slice(bytes))]))),
            None => Err(TransportError::new(TransportErrorKind::FileNotFound, url)),
        }
    }
}

/// The check that an error of the library stands for.
fn named(error: &TufError, files: &Files, scratch: &Path) -> Rejection {
    let check = match error {
        TufError::VerifyMetadata { .. } => Check::Signature,
        TufError::ParseTrustedMetadata { .. } | TufError::VerifyTrustedMetadata { .. } => Check::Trust,
        TufError::OlderMetadata { .. } | TufError::OlderSnapshotInTimestamp { .. } | TufError::SnapshotRoleRollback { .. } => Check::Replay,
        TufError::VersionMismatch { .. } | TufError::SnapshotRoleMissing { .. } => Check::MixAndMatch,
        TufError::MaxUpdatesExceeded { .. } | TufError::MaxSizeExceeded { .. } => Check::TooLarge,
        TufError::HashMismatch { .. } => Check::Hash,
        TufError::Transport { url, source, .. } => transported(url, source, files, scratch),
        _ => io_cause(error).unwrap_or(Check::Schema),
    };
    Rejection::new(check, error.to_string())
}

/// A file that is not there or not the one that was signed for. Where it is signed all the same, it comes from another bundle.
fn transported(url: &Url, source: &TransportError, files: &Files, scratch: &Path) -> Check {
    let name = url.path().trim_start_matches('/');
    if source.kind() == TransportErrorKind::FileNotFound {
        let of_role = |role: &str| name.ends_with(role) && files.iter().any(|(other, _)| other.ends_with(role));
        let other_version = name.starts_with("metadata/") && (of_role(".snapshot.json") || of_role(".targets.json"));
        return if other_version { Check::MixAndMatch } else { Check::Missing };
    }
    let cause = source.source().and_then(|cause| cause.downcast_ref::<TufError>());
    match cause {
        // The length is the one that was signed for, but for the roles whose length nobody signs.
        Some(TufError::MaxSizeExceeded { .. }) if name.ends_with("root.json") || name.ends_with("timestamp.json") => Check::TooLarge,
        Some(TufError::HashMismatch { .. } | TufError::MaxSizeExceeded { .. }) if name.starts_with("metadata/") => {
            let bytes = files.get(name).unwrap_or_default();
            let signed =
                if name.ends_with("snapshot.json") { is_signed::<Snapshot>(bytes, scratch) } else { is_signed::<Targets>(bytes, scratch) };
            if signed { Check::MixAndMatch } else { Check::Signature }
        }
        Some(TufError::HashMismatch { .. } | TufError::MaxSizeExceeded { .. }) => Check::Hash,
        _ => Check::Io,
    }
}

/// Whether metadata is signed by the keys of the root that the bundle led to, which the library has put down by now.
fn is_signed<R: Role + DeserializeOwned + serde::Serialize>(bytes: &[u8], scratch: &Path) -> bool {
    let root = std::fs::read(scratch.join("root.json")).ok();
    let root: Option<Signed<Root>> = root.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let role: Option<Signed<R>> = serde_json::from_slice(bytes).ok();
    root.zip(role).is_some_and(|(root, role)| root.signed.verify_role(&role).is_ok())
}

/// The check of the file system's error, where one is at the bottom of it.
fn io_cause(error: &TufError) -> Option<Check> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(Check::of_io(error));
        }
        cause = error.source();
    }
    None
}

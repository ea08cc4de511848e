//! The snapshot: what the nodes said before they were written, kept in a file before the first write, so that whoever comes next can restore them.

use crate::pin::Node;
use crate::sysfs::{Sysfs, word};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Longest file.
const LIMIT: u64 = 1 << 20;
/// The form of the file.
const VERSION: u32 = 1;
/// Most nodes.
const NODES: usize = 4096;
/// Longest text of a node that is kept.
pub(crate) const TEXT: usize = 256;

/// How far an apply came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nodes may have been written; what came of it is not known.
    Writing,
    /// All that could be written is, and was read back.
    Applied,
}

/// What was there before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    version: u32,
    /// Which start of the machine it belongs to.
    pub boot_id: String,
    /// The profile.
    pub profile: String,
    /// How far it came.
    pub phase: Phase,
    /// The power mode it was applied in, where it could be read.
    pub mode: Option<String>,
    /// The profile's tolerated temperature, °C.
    pub tolerated: Option<f64>,
    /// Throttle and over-current counters then, by file.
    pub counters: BTreeMap<String, u64>,
    /// The nodes, in the order they are written.
    pub nodes: Vec<Node>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Reading or writing it.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a snapshot of ours.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Snapshot {
    pub(crate) fn new(boot_id: String, profile: String) -> Self {
        let (mode, tolerated) = (None, None);
        Self { version: VERSION, boot_id, profile, phase: Phase::Writing, mode, tolerated, counters: BTreeMap::new(), nodes: Vec::new() }
    }

    /// Whether it names only what a profile may write: a restore by root must not write where somebody's file says.
    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("is of version {}, not {VERSION}", self.version));
        }
        if self.nodes.len() > NODES {
            return Err(format!("names more than {NODES} nodes"));
        }
        for node in &self.nodes {
            if !node.may_be_written() || node.before.as_ref().is_some_and(|text| text.len() > TEXT) || node.wanted.len() > TEXT {
                return Err(format!("{} is no node of a profile", node.path));
            }
        }
        Ok(())
    }
}

/// Which start of the machine this is.
pub(crate) fn boot_id(sysfs: &dyn Sysfs) -> Option<String> {
    word(sysfs, "/proc/sys/kernel/random/boot_id").ok().filter(|id| id.len() <= 64)
}

/// Where the snapshot lies.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// Held while a snapshot is made, applied or restored.
pub struct Lock {
    _file: File,
}

impl StateFile {
    /// In this file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The usual one of a board.
    pub fn of_root(root: &Path) -> Self {
        Self::at(root.join("run/skipd-profile/state.json"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, source: io::Error) -> StateError {
        StateError::Io { path: self.path.clone(), source }
    }

    /// Keeps others from applying or restoring meanwhile; waits for them.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn lock(&self) -> Result<Lock, StateError> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| self.failed(error))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.path.with_extension("lock"));
        let file = file.map_err(|error| self.failed(error))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|error| self.failed(error.into()))?;
        Ok(Lock { _file: file })
    }

    /// The snapshot; None where there is none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn load(&self) -> Result<Option<Snapshot>, StateError> {
        let malformed = |reason: String| StateError::Malformed { path: self.path.clone(), reason };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let mut text = Vec::new();
        file.take(LIMIT + 1).read_to_end(&mut text).map_err(|error| self.failed(error))?;
        if text.len() as u64 > LIMIT {
            return Err(malformed(format!("is longer than {LIMIT} bytes")));
        }
        let snapshot: Snapshot = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        snapshot.check().map_err(malformed)?;
        Ok(Some(snapshot))
    }

    /// Writes it so that after a power cut there is the old one or the new one, and everybody may read it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn save(&self, snapshot: &Snapshot) -> Result<(), StateError> {
        let text = serde_json::to_vec_pretty(snapshot).map_err(|error| self.failed(error.into()))?;
        let save = || -> io::Result<()> {
            let beside = self.path.with_extension("new");
            let mut file = File::create(&beside)?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&beside, &self.path)?;
            self.sync_folder()
        };
        save().map_err(|error| self.failed(error))
    }

    /// Removes it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove(&self) -> Result<(), StateError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            _ => self.sync_folder().map_err(|error| self.failed(error)),
        }
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

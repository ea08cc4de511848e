//! Nodes under a root: bounded reads, writes of nodes that exist, and listings.

use crate::fault::Fault;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most that is read of a node; nvpmodel.conf is the longest.
const LIMIT: u64 = 256 << 10;
/// Most entries of a folder.
const ENTRIES: usize = 4096;

/// The files of a board. Paths are those of the board, from its root: `/sys/…`, `/proc/…`, `/etc/…`.
pub trait Sysfs: Send + Sync {
    /// All of a node's text.
    ///
    /// # Errors
    /// [`Fault`].
    fn read(&self, path: &str) -> Result<String, Fault>;

    /// Writes a node, which must exist, in one write.
    ///
    /// # Errors
    /// [`Fault`].
    fn write(&self, path: &str, text: &str) -> Result<(), Fault>;

    /// Names in a folder, sorted; names that are no text are left out.
    ///
    /// # Errors
    /// [`Fault`].
    fn list(&self, path: &str) -> Result<Vec<String>, Fault>;

    /// Whether there is anything of this path.
    fn exists(&self, path: &str) -> bool;
}

/// The real files, or a recorded tree.
#[derive(Clone, Debug)]
pub struct Rooted {
    root: PathBuf,
}

impl Rooted {
    /// Everything under `root`; `/` is this machine.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn place(&self, path: &str) -> PathBuf {
        let at = self.root.join(path.trim_start_matches('/'));
        // /etc/nvpmodel.conf is an absolute link: in a recorded tree it means the tree's file.
        match std::fs::read_link(&at) {
            Ok(target) if target.is_absolute() => self.root.join(target.strip_prefix("/").unwrap_or(&target)),
            _ => at,
        }
    }
}

impl Sysfs for Rooted {
    fn read(&self, path: &str) -> Result<String, Fault> {
        // Not blocking: a pipe in the place of a node must not hold anybody up.
        let file = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(self.place(path))?;
        bounded(file)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Fault> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.place(path))?;
        file.write_all(text.as_bytes())?;
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Fault> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.place(path))?.take(ENTRIES) {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &str) -> bool {
        self.place(path).symlink_metadata().is_ok()
    }
}

fn bounded(file: File) -> Result<String, Fault> {
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LIMIT { Err(Fault::TooLarge { limit: LIMIT }) } else { Ok(text) }
}

/// A whole number.
pub(crate) fn number(sysfs: &dyn Sysfs, path: &str) -> Result<u64, Fault> {
    let text = sysfs.read(path)?;
    text.trim().parse().map_err(|_| Fault::nonsense(&text))
}

/// A whole number that may be below zero.
pub(crate) fn signed(sysfs: &dyn Sysfs, path: &str) -> Result<i64, Fault> {
    let text = sysfs.read(path)?;
    text.trim().parse().map_err(|_| Fault::nonsense(&text))
}

/// A word or a line.
pub(crate) fn word(sysfs: &dyn Sysfs, path: &str) -> Result<String, Fault> {
    let text = sysfs.read(path)?;
    let line = text.trim_matches(['\0', '\n', ' ']);
    if line.is_empty() || line.chars().any(char::is_control) { Err(Fault::nonsense(&text)) } else { Ok(line.to_owned()) }
}

/// The last part of a path.
pub(crate) fn name(path: &str) -> &str {
    Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or(path)
}

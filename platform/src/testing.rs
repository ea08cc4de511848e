//! Trees in a temporary folder, and files that fail.

use crate::fault::Fault;
use crate::sysfs::{Rooted, Sysfs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

pub const TREES: [(&str, &str); 5] = [
    ("thor-r38", include_str!("../trees/thor-r38.txt")),
    ("thor-r39", include_str!("../trees/thor-r39.txt")),
    ("orin", include_str!("../trees/orin.txt")),
    ("x86", include_str!("../trees/x86.txt")),
    ("nothing", include_str!("../trees/nothing.txt")),
];

/// A tree of files.
pub struct Tree {
    root: TempDir,
}

impl Tree {
    pub fn new(name: &str) -> Self {
        // In memory where the system has such a place: every snapshot is synced to its disk.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let tree = Self { root: tempfile::tempdir_in(place).unwrap() };
        let (_, manifest) = TREES.iter().find(|(known, _)| *known == name).unwrap();
        crate::tree::lay_tree(manifest, tree.root()).unwrap();
        tree
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn files(&self) -> Rooted {
        Rooted::new(self.root())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub fn set(&self, path: &str, text: &str) {
        let at = self.path(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, text).unwrap();
    }

    pub fn get(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    pub fn remove(&self, path: &str) {
        std::fs::remove_file(self.path(path)).unwrap();
    }

    /// Every file under /sys, with its bytes.
    pub fn sys(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.path("/sys")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.insert(path.clone(), std::fs::read(path).unwrap()).map_or((), drop) }
            }
        }
        found
    }
}

/// What happens at a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// The kernel refuses this one.
    Refuse,
    /// The process ends before it.
    Die,
    /// It is taken, and something else is kept.
    Lie,
}

/// Files of a tree, of whose writes one has trouble. Minimum and maximum that cross are refused, as the kernel's are.
pub struct Troubled {
    files: Rooted,
    at: Option<(usize, Trouble)>,
    writes: AtomicUsize,
}

impl Troubled {
    pub fn new(files: Rooted, at: Option<(usize, Trouble)>) -> Self {
        Self { files, at, writes: AtomicUsize::new(0) }
    }

    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }

    /// Panics where a minimum would be above its maximum: the order of writes is wrong.
    fn check_order(&self, path: &str, text: &str) {
        let Ok(value) = text.trim().parse::<u64>() else { return };
        let other = if path.contains("min_freq") { path.replace("min_freq", "max_freq") } else { path.replace("max_freq", "min_freq") };
        let Some(other) = self.files.read(&other).ok().filter(|_| other != path).and_then(|text| text.trim().parse::<u64>().ok()) else {
            return;
        };
        let (min, max) = if path.contains("min_freq") { (value, other) } else { (other, value) };
        assert!(min <= max, "{path}: {min} > {max}");
    }
}

impl Sysfs for Troubled {
    fn read(&self, path: &str) -> Result<String, Fault> {
        self.files.read(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Fault> {
        let at = self.writes.fetch_add(1, Ordering::Relaxed);
        self.check_order(path, text);
        match self.at.filter(|(when, _)| *when == at) {
            Some((_, Trouble::Refuse)) => Err(Fault::Refused { errno: 13, words: "permission denied".into() }),
            Some((_, Trouble::Die)) => std::panic::resume_unwind(Box::new("killed")),
            Some((_, Trouble::Lie)) if path.contains("min_freq") => Ok(()),
            _ => self.files.write(path, text),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Fault> {
        self.files.list(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.files.exists(path)
    }
}

//! A disk in memory that can fail or stop dead at any operation, and then loses what was not synced: a file that was written may be gone, cut, zeros or
//! whole; each change of names that its folder was not synced for may have happened or not, one independent of the other.

use skip_updates::Disk;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The operation of this number fails, and does nothing.
    Once(usize, io::ErrorKind),
    /// It and all after it that change anything fail.
    From(usize, io::ErrorKind),
    /// The machine stops before this operation, or in the midst of it where it is a write.
    Stop(usize),
}

#[derive(Clone, Debug)]
enum Node {
    File { now: Vec<u8>, synced: Vec<u8> },
    Folder { now: BTreeMap<String, usize>, synced: BTreeMap<String, usize> },
    Link(PathBuf),
}

/// Changes of names that happen together: folder, name, and what has it from then on.
type Change = Vec<(usize, String, Option<usize>)>;

#[derive(Clone, Debug)]
struct Inner {
    nodes: Vec<Node>,
    pending: Vec<Change>,
    fault: Fault,
    operations: usize,
    stopped: bool,
}

/// The disk. A clone is the same disk.
#[derive(Clone, Debug)]
pub struct Model(Rc<RefCell<Inner>>);

impl Model {
    /// An empty disk.
    pub fn new() -> Self {
        let root = Node::Folder { now: BTreeMap::new(), synced: BTreeMap::new() };
        Self(Rc::new(RefCell::new(Inner { nodes: vec![root], pending: Vec::new(), fault: Fault::None, operations: 0, stopped: false })))
    }

    /// A copy on which `fault` happens.
    pub fn with(&self, fault: Fault) -> Self {
        let mut inner = self.0.borrow().clone();
        (inner.fault, inner.operations, inner.stopped) = (fault, 0, false);
        Self(Rc::new(RefCell::new(inner)))
    }

    /// Operations since [`Self::with`].
    pub fn operations(&self) -> usize {
        self.0.borrow().operations
    }

    /// A copy on which everything is on the medium.
    pub fn settled(&self) -> Self {
        let mut inner = self.0.borrow().clone();
        inner.pending.clear();
        for node in &mut inner.nodes {
            match node {
                Node::File { now, synced } => synced.clone_from(now),
                Node::Folder { now, synced } => synced.clone_from(now),
                Node::Link(_) => {}
            }
        }
        (inner.fault, inner.operations, inner.stopped) = (Fault::None, 0, false);
        Self(Rc::new(RefCell::new(inner)))
    }

    /// The disk after a cut of power; `seed` decides what of the unsynced there is.
    pub fn cut(&self, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut inner = self.0.borrow().clone();
        for change in std::mem::take(&mut inner.pending) {
            if random.below(2) == 0 {
                inner.make_durable(&change);
            }
        }
        for node in &mut inner.nodes {
            match node {
                Node::File { now, synced } => {
                    if now != synced {
                        match random.below(4) {
                            0 => now.clone_from(synced),
                            1 => now.fill(0),
                            2 => now.truncate(random.below(now.len() + 1)),
                            _ => {}
                        }
                        synced.clone_from(now);
                    }
                }
                Node::Folder { now, synced } => now.clone_from(synced),
                Node::Link(_) => {}
            }
        }
        (inner.fault, inner.stopped) = (Fault::None, false);
        Self(Rc::new(RefCell::new(inner)))
    }

    /// Changes a file's bytes behind everybody's back.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.0.borrow_mut();
        let at = inner.find(path).unwrap();
        let Node::File { now, synced } = &mut inner.nodes[at] else { panic!("{} is no file", path.display()) };
        change(now);
        synced.clone_from(now);
    }

    fn operate<T>(&self, changes: bool, operation: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.0.borrow_mut();
        let number = inner.operations;
        inner.operations += 1;
        if matches!(inner.fault, Fault::Stop(at) if at == number) {
            inner.stopped = true;
        }
        if inner.stopped {
            return Err(io::Error::other("the power is gone"));
        }
        match inner.fault {
            Fault::Once(at, kind) if at == number => Err(kind.into()),
            Fault::From(at, kind) if at <= number && changes => Err(kind.into()),
            _ => operation(&mut inner),
        }
    }
}

struct Random(u64);

impl Random {
    /// splitmix64.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

impl Inner {
    fn find(&self, path: &Path) -> io::Result<usize> {
        path.components().try_fold(0, |at, part| {
            let (Component::Normal(name), Node::Folder { now, .. }) = (part, &self.nodes[at]) else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            now.get(name.to_str().unwrap()).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    /// The folder a path lies in, and its name there.
    fn place(&self, path: &Path) -> io::Result<(usize, String)> {
        let folder = self.find(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, path.file_name().unwrap().to_str().unwrap().to_owned()))
    }

    fn names(&mut self, folder: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[folder] {
            Node::Folder { now, .. } => now,
            other => panic!("no folder: {other:?}"),
        }
    }

    fn change(&mut self, change: Change) {
        for (folder, name, node) in &change {
            match node {
                Some(node) => self.names(*folder).insert(name.clone(), *node),
                None => self.names(*folder).remove(name),
            };
        }
        self.pending.push(change);
    }

    fn make_durable(&mut self, change: &Change) {
        for (folder, name, node) in change {
            let Node::Folder { synced, .. } = &mut self.nodes[*folder] else { panic!("no folder") };
            match node {
                Some(node) => synced.insert(name.clone(), *node),
                None => synced.remove(name),
            };
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        if self.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (folder, name) = self.place(path)?;
        self.nodes.push(node);
        let at = self.nodes.len() - 1;
        self.change(vec![(folder, name, Some(at))]);
        Ok(at)
    }

    fn remove(&mut self, path: &Path, folder: bool) -> io::Result<()> {
        let at = self.find(path)?;
        match &self.nodes[at] {
            Node::Folder { now, .. } if folder && !now.is_empty() => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Node::Folder { .. } if !folder => return Err(io::ErrorKind::IsADirectory.into()),
            Node::Folder { .. } => {}
            _ if folder => return Err(io::ErrorKind::NotADirectory.into()),
            _ => {}
        }
        let (place, name) = self.place(path)?;
        self.change(vec![(place, name, None)]);
        Ok(())
    }
}

impl Disk for Model {
    type File = usize;

    fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        self.operate(false, |inner| {
            let at = inner.find(path)?;
            match &inner.nodes[at] {
                Node::File { now, .. } => Ok(now[..now.len().min(limit + 1)].to_vec()),
                _ => Err(io::ErrorKind::IsADirectory.into()),
            }
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.operate(false, |inner| {
            let at = inner.find(path)?;
            Ok(inner.names(at).keys().cloned().collect())
        })
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        self.operate(false, |inner| match inner.find(path) {
            Ok(at) => Ok(matches!(inner.nodes[at], Node::Folder { .. })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        })
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.operate(false, |inner| {
            let at = inner.find(path)?;
            match &inner.nodes[at] {
                Node::Link(target) => Ok(target.clone()),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }
        })
    }

    fn create(&self, path: &Path) -> io::Result<usize> {
        self.operate(true, |inner| inner.add(path, Node::File { now: Vec::new(), synced: Vec::new() }))
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
        let halfway = matches!(self.0.borrow().fault, Fault::Stop(at) if at == self.0.borrow().operations);
        if halfway && let Node::File { now, .. } = &mut self.0.borrow_mut().nodes[*file] {
            now.extend_from_slice(&bytes[..bytes.len() / 2]);
        }
        self.operate(true, |inner| match &mut inner.nodes[*file] {
            Node::File { now, .. } => {
                now.extend_from_slice(bytes);
                Ok(())
            }
            _ => Err(io::ErrorKind::IsADirectory.into()),
        })
    }

    fn sync(&self, file: usize) -> io::Result<()> {
        self.operate(true, |inner| match &mut inner.nodes[file] {
            Node::File { now, synced } => {
                synced.clone_from(now);
                Ok(())
            }
            _ => Err(io::ErrorKind::IsADirectory.into()),
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |inner| {
            let folder = inner.find(path)?;
            let (of_folder, rest) =
                std::mem::take(&mut inner.pending).into_iter().partition(|c: &Change| c.iter().any(|(at, ..)| *at == folder));
            inner.pending = rest;
            for change in of_folder {
                inner.make_durable(&change);
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(true, |inner| {
            let at = inner.find(from)?;
            if let Ok(there) = inner.find(to) {
                match &inner.nodes[there] {
                    Node::Folder { now, .. } if !now.is_empty() => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                    _ => {}
                }
            }
            let (source, target) = (inner.place(from)?, inner.place(to)?);
            inner.change(vec![(source.0, source.1, None), (target.0, target.1, Some(at))]);
            Ok(())
        })
    }

    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.operate(true, |inner| inner.add(path, Node::Link(target.to_owned())).map(|_| ()))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |inner| inner.add(path, Node::Folder { now: BTreeMap::new(), synced: BTreeMap::new() }).map(|_| ()))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |inner| inner.remove(path, false))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |inner| inner.remove(path, true))
    }
}

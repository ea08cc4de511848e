//! Writing into the store: write beside, sync, rename, sync the folder.

use super::{Admitted, CHECKPOINT, FLOOR, INCOMING, METADATA, SLOTS, STATE, STORE, Store, StoreError, TRUST, load};
use crate::check::Rejection;
use crate::disk::Disk;
use crate::manifest::SlotName;
use crate::state::State;
use skip_tables::Digest;
use std::io;
use std::path::Path;

impl<D: Disk> Store<D> {
    /// Writes tables, slot and root; nothing of it counts before the state names it.
    pub(super) fn put_slot(&self, name: &SlotName, tables: Digest, update: &Admitted) -> Result<(), StoreError> {
        for folder in [INCOMING, STORE, SLOTS, TRUST, super::DATASTORE] {
            self.make_dir(Path::new(folder))?;
        }
        let path = load::tables_path(tables);
        let there = load::optional(&self.disk, &path)?.is_some_and(|bytes| Digest::of(&bytes) == tables);
        if !there {
            self.put(&path, &update.tables)?;
        }
        // The slot may be there already where it is on trial and is staged anew.
        if self.slot(name)?.is_none() {
            self.put_folder(name, update)?;
        }
        let root = Path::new(TRUST).join("root.json");
        let known = load::optional(&self.disk, &root)?.and_then(|bytes| load::version_of(&bytes)).unwrap_or_default();
        if load::version_of(&update.root).is_some_and(|version| version > known) {
            self.put(&root, &update.root)?;
        }
        Ok(())
    }

    fn put_folder(&self, name: &SlotName, update: &Admitted) -> Result<(), StoreError> {
        let aside = Path::new(INCOMING).join(name.to_string());
        self.make_dir(&aside)?;
        let checkpoint = load::sealed(&update.checkpoint.to_string()).into_bytes();
        let files = METADATA.iter().copied().zip(&update.metadata).chain([("manifest.json", &update.manifest), (CHECKPOINT, &checkpoint)]);
        for (file, bytes) in files {
            self.write(&aside.join(file), bytes)?;
        }
        self.sync_dir(&aside)?;
        let place = Path::new(SLOTS).join(name.to_string());
        self.done(&place, self.disk.rename(&aside, &place))?;
        self.sync_dir(Path::new(SLOTS))
    }

    /// Makes a state true: the one step that counts.
    pub(super) fn decide(&mut self, state: State) -> Result<(), StoreError> {
        self.make_dir(Path::new(INCOMING))?;
        self.put(Path::new(STATE), load::written_state(&state).as_bytes())?;
        self.state = state;
        Ok(())
    }

    /// Writes the floor.
    pub(super) fn put_floor(&self, floor: u64) -> Result<(), StoreError> {
        self.put(Path::new(FLOOR), load::sealed(&floor.to_string()).as_bytes())
    }

    /// Puts a file in the place of the one before.
    pub(super) fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let aside = self.aside(path)?;
        self.write(&aside, bytes)?;
        self.done(path, self.disk.rename(&aside, path))?;
        self.sync_dir(path.parent().unwrap_or(Path::new("")))
    }

    /// Puts a link in the place of the one before.
    pub(super) fn put_link(&self, link: &str, target: &Path) -> Result<(), StoreError> {
        let path = Path::new(link);
        let aside = self.aside(path)?;
        self.done(&aside, self.disk.symlink(target, &aside))?;
        self.done(path, self.disk.rename(&aside, path))
    }

    /// A free name in `incoming/`.
    fn aside(&self, path: &Path) -> Result<std::path::PathBuf, StoreError> {
        let name = path.file_name().unwrap_or_default();
        let aside = Path::new(INCOMING).join(name);
        match self.disk.remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Rejection::io(aside.display(), &error)),
            _ => Ok(aside),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = self.done(path, self.disk.create(path))?;
        self.done(path, self.disk.write(&mut file, bytes))?;
        self.done(path, self.disk.sync(file))
    }

    pub(super) fn make_dir(&self, path: &Path) -> Result<(), StoreError> {
        if self.done(path, self.disk.is_dir(path))? {
            return Ok(());
        }
        self.done(path, self.disk.make_dir(path))?;
        self.sync_dir(path.parent().unwrap_or(Path::new("")))
    }

    pub(super) fn sync_dir(&self, path: &Path) -> Result<(), StoreError> {
        self.done(path, self.disk.sync_dir(path))
    }

    pub(super) fn done<T>(&self, path: &Path, result: io::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| Rejection::io(path.display(), &error))
    }
}

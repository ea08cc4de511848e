//! Making the disk what the state says, from whatever a cut left.

use super::{DATASTORE, INCOMING, LINKS, METADATA, SLOTS, STORE, Store, StoreError, load};
use crate::disk::Disk;
use crate::manifest::SlotName;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

impl<D: Disk> Store<D> {
    /// Brings links, floor and datastore up to the state, and removes what it does not name. Each step may be cut; the next opening goes on from there.
    /// Where nothing is behind, nothing is written.
    pub(super) fn recover(&mut self) -> Result<(), StoreError> {
        // First, as it needs no room and may make some.
        self.clear(Path::new(INCOMING))?;
        self.settle_state()?;
        self.settle_links()?;
        self.settle_floor()?;
        self.settle_datastore()?;
        self.remove_unnamed()
    }

    /// The state on disk is the one in hand, which names no damaged slot.
    fn settle_state(&mut self) -> Result<(), StoreError> {
        let state = self.state.clone();
        let path = Path::new(super::STATE);
        let written = load::optional(&self.disk, path)?;
        let empty = written.is_none() && state == super::State::default();
        if empty || written.as_deref() == Some(load::written_state(&state).as_bytes()) {
            return Ok(());
        }
        self.decide(state)
    }

    fn settle_links(&self) -> Result<(), StoreError> {
        let mut changed = false;
        for (link, slot) in LINKS.into_iter().zip([&self.state.active, &self.state.previous]) {
            let path = Path::new(link);
            let there = match self.disk.read_link(path) {
                Ok(target) => Some(target),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                // Something that is no link: it gives way.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Some(PathBuf::new()),
                Err(error) => return self.done(path, Err(error)),
            };
            let wanted = slot.as_ref().map(|slot| Path::new(SLOTS).join(slot.to_string()));
            if there == wanted {
                continue;
            }
            changed = true;
            match wanted {
                Some(target) => {
                    self.make_dir(Path::new(INCOMING))?;
                    self.put_link(link, &target)?;
                }
                None => self.done(path, self.disk.remove_file(path))?,
            }
        }
        if changed { self.sync_dir(Path::new("")) } else { Ok(()) }
    }

    /// A slot that is in force has been committed, so its version is a floor.
    fn settle_floor(&mut self) -> Result<(), StoreError> {
        let floor = self.floor.max(self.state.active.as_ref().map_or(0, SlotName::version));
        let written = load::optional(&self.disk, Path::new(super::FLOOR))?;
        if floor > 0 && written.as_deref() != Some(load::sealed(&floor.to_string()).as_bytes()) {
            self.make_dir(Path::new(INCOMING))?;
            self.put_floor(floor)?;
        }
        self.floor = floor;
        Ok(())
    }

    /// The committed slot's metadata is what the next bundle's is held against; an older one never takes a newer one's place.
    fn settle_datastore(&self) -> Result<(), StoreError> {
        let Some(active) = &self.state.active else { return Ok(()) };
        let folder = Path::new(SLOTS).join(active.to_string());
        if active.version() < self.floor {
            return Ok(());
        }
        for name in METADATA {
            let (from, to) = (folder.join(name), Path::new(DATASTORE).join(name));
            let Some(bytes) = load::optional(&self.disk, &from)?.filter(|bytes| load::version_of(bytes).is_some()) else { continue };
            if load::optional(&self.disk, &to)?.as_ref() != Some(&bytes) {
                self.make_dir(Path::new(DATASTORE))?;
                self.make_dir(Path::new(INCOMING))?;
                self.put(&to, &bytes)?;
            }
        }
        Ok(())
    }

    fn remove_unnamed(&self) -> Result<(), StoreError> {
        let slots: BTreeSet<String> = self.state.slots().map(SlotName::to_string).collect();
        let mut tables: BTreeSet<PathBuf> = BTreeSet::new();
        for name in self.state.slots() {
            tables.extend(self.slot(name)?.map(|slot| slot.path));
        }
        for name in self.names(Path::new(SLOTS))? {
            if !slots.contains(&name) {
                // Out of the way in one step: a slot is there whole or not at all.
                let (from, to) = (Path::new(SLOTS).join(&name), Path::new(INCOMING).join(&name));
                self.make_dir(Path::new(INCOMING))?;
                self.done(&from, self.disk.rename(&from, &to))?;
            }
        }
        for name in self.names(Path::new(STORE))? {
            let path = Path::new(STORE).join(&name);
            if !tables.contains(&path) {
                self.done(&path, self.disk.remove_file(&path))?;
            }
        }
        self.clear(Path::new(INCOMING))
    }

    /// Empties a folder, of files and of folders of files.
    fn clear(&self, folder: &Path) -> Result<(), StoreError> {
        for name in self.names(folder)? {
            let path = folder.join(&name);
            if self.done(&path, self.disk.is_dir(&path))? {
                self.clear(&path)?;
                self.done(&path, self.disk.remove_dir(&path))?;
            } else {
                self.done(&path, self.disk.remove_file(&path))?;
            }
        }
        Ok(())
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        match self.disk.list(folder) {
            Ok(names) => Ok(names),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => self.done(folder, Err(error)),
        }
    }
}

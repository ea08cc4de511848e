//! The store of slots: a folder in which an update is put, tried, committed and left again, so that a cut of power at any moment leaves it readable
//! and right.
//!
//! ```text
//! store/<sha256>.json                                    tables, by their content
//! slots/<version>-<sha8>/{manifest.json,checkpoint,…}     one update each, with the metadata it came with
//! current, previous -> slots/…                           the committed slot and the one before
//! state.json                                             active, previous, trial, tries_left, reason
//! floor                                                  the highest version ever committed
//! trust/root.json                                        whose signatures count
//! tuf-datastore/                                         metadata last committed
//! incoming/                                              what is not finished
//! ```
//!
//! Every file is written beside, synced, renamed into place, and its folder synced. One rename decides each transition: that of `state.json`. Links,
//! floor and datastore follow from it and are brought up to it by [`Store::open`] whenever they are behind; what `state.json` does not name is removed.

mod load;
mod put;
mod recover;

pub use load::{View, fuzz_small_files};

use crate::check::{Check, Rejection};
use crate::disk::{Disk, RealDisk};
use crate::manifest::{Entry, Manifest, SlotName};
use crate::state::{Begun, State};
use skip_tables::Digest;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The metadata kept with a slot and, once it is committed, in `tuf-datastore/`.
pub const METADATA: [&str; 3] = ["timestamp.json", "snapshot.json", "targets.json"];

pub(crate) const STATE: &str = "state.json";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const STORE: &str = "store";
pub(crate) const SLOTS: &str = "slots";
pub(crate) const INCOMING: &str = "incoming";
pub(crate) const DATASTORE: &str = "tuf-datastore";
pub(crate) const TRUST: &str = "trust";
/// In a slot: which of the manifest's checkpoints it was taken for.
pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const LINKS: [&str; 2] = ["current", "previous"];

/// Why the store did not do what it was asked.
pub type StoreError = Rejection;

/// An update that has passed every check, as it is put into the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The manifest as it was signed.
    pub manifest: Vec<u8>,
    /// Tables of the installed checkpoint.
    pub tables: Vec<u8>,
    /// The installed checkpoint.
    pub checkpoint: Digest,
    /// [`METADATA`] in its order.
    pub metadata: [Vec<u8>; 3],
    /// The root that the bundle led to.
    pub root: Vec<u8>,
}

/// A complete slot, read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: SlotName,
    /// Its manifest.
    pub manifest: Manifest,
    /// Which of the manifest's entries it keeps.
    pub entry: Entry,
    /// The tables' file, relative to the store's folder.
    pub path: PathBuf,
    /// The tables.
    pub tables: Vec<u8>,
}

/// A store that may be changed; one a time (see [`RealDisk::lock`]).
#[derive(Debug)]
pub struct Store<D: Disk> {
    disk: D,
    state: State,
    floor: u64,
    /// The lock, where there is one.
    _held: Option<File>,
}

impl Store<RealDisk> {
    /// Opens the store in a folder, alone, and finishes or undoes what a cut left.
    ///
    /// # Errors
    /// [`Check::Busy`] while another process has it, or what the file system gives.
    pub fn lock_and_open(root: &Path) -> Result<Self, StoreError> {
        let disk = RealDisk::new(root);
        disk.make_root().map_err(|e| Rejection::io(root.display(), &e))?;
        let held = disk.lock().map_err(|e| Rejection::io(root.display(), &e))?;
        if held.is_none() {
            return Err(Rejection::new(Check::Busy, format!("{}: another process is changing it", root.display())));
        }
        let mut store = Self::open(disk)?;
        store._held = held;
        Ok(store)
    }
}

impl<D: Disk> Store<D> {
    /// Opens the store and finishes or undoes what a cut left. The caller sees to it that nobody else changes it.
    ///
    /// # Errors
    /// What the file system gives; what the store holds is never an error.
    pub fn open(disk: D) -> Result<Self, StoreError> {
        let view = View::read(&disk)?;
        let mut store = Self { disk, state: view.state, floor: view.floor, _held: None };
        store.recover()?;
        Ok(store)
    }

    /// What is in force, on trial, and to return to.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The highest version ever committed: an update has to be above it.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// A slot; None where it is not there or not whole.
    ///
    /// # Errors
    /// What the file system gives.
    pub fn slot(&self, name: &SlotName) -> Result<Option<Slot>, StoreError> {
        match load::slot(&self.disk, name) {
            Ok(slot) => Ok(Some(slot)),
            Err(load::Flaw::Damaged(_)) => Ok(None),
            Err(load::Flaw::Io(error)) => Err(error),
        }
    }

    /// The root that is trusted since the last rotation; None before the first.
    ///
    /// # Errors
    /// What the file system gives.
    pub fn root(&self) -> Result<Option<Vec<u8>>, StoreError> {
        load::optional(&self.disk, &Path::new(TRUST).join("root.json"))
    }

    /// Metadata last committed, in the order of [`METADATA`].
    ///
    /// # Errors
    /// What the file system gives.
    pub fn metadata(&self) -> Result<[Option<Vec<u8>>; 3], StoreError> {
        let read = |name: &str| load::optional(&self.disk, &Path::new(DATASTORE).join(name));
        Ok([read(METADATA[0])?, read(METADATA[1])?, read(METADATA[2])?])
    }

    /// Puts an update on trial. If that fails, nothing of it is left.
    ///
    /// # Errors
    /// [`Check::Replay`] where its version is not above the floor, [`Check::Schema`] where manifest and tables do not fit, or what the file system gives.
    pub fn stage(&mut self, update: &Admitted) -> Result<SlotName, StoreError> {
        let manifest = Manifest::parse(&update.manifest)?;
        if manifest.version <= self.floor {
            return Err(Rejection::new(
                Check::Replay,
                format!("version {} is not above {}, which was committed here", manifest.version, self.floor),
            ));
        }
        let entry = manifest.entry(update.checkpoint)?;
        if entry.sha256 != Digest::of(&update.tables) {
            return Err(Rejection::new(Check::Hash, format!("{} is not what the manifest names", entry.file)));
        }
        let name = SlotName::of(manifest.version, &update.manifest);
        let put = self.put_slot(&name, entry.sha256, update).and_then(|()| self.decide(self.state.stage(name.clone())));
        // Removes what the state does not name: the trial before, or else all that was put of this one.
        self.settle();
        put.map(|()| name)
    }

    /// Spends a try of the trial; what it returns may then be used.
    ///
    /// # Errors
    /// What the file system gives: then no try may be begun.
    pub fn begin(&mut self) -> Result<Begun, StoreError> {
        let begun = self.state.begin();
        match &begun {
            Begun::NoTrial => {}
            Begun::Try(_, state) => self.decide(state.clone())?,
            Begun::GivenUp(state) => {
                self.decide(state.clone())?;
                self.settle();
            }
        }
        Ok(begun)
    }

    /// The trial is good: its slot is in force from now on, and its version is the floor.
    ///
    /// # Errors
    /// [`Check::NothingThere`] where `slot` is not on trial, or what the file system gives.
    pub fn commit(&mut self, slot: &SlotName) -> Result<(), StoreError> {
        let state = self.state.commit(slot).ok_or_else(|| not_on_trial(slot))?;
        self.decide(state)?;
        self.settle();
        Ok(())
    }

    /// The trial is not good.
    ///
    /// # Errors
    /// [`Check::NothingThere`] where `slot` is not on trial, or what the file system gives.
    pub fn fail(&mut self, slot: &SlotName, reason: &str) -> Result<(), StoreError> {
        let state = self.state.fail(slot, reason).ok_or_else(|| not_on_trial(slot))?;
        self.decide(state)?;
        self.settle();
        Ok(())
    }

    /// Ends the trial, or else goes back to the slot before the active one, and from the first one to none. The floor stays.
    ///
    /// # Errors
    /// [`Check::NothingThere`] where no update is in force or on trial, or what the file system gives.
    pub fn roll_back(&mut self, reason: &str) -> Result<(), StoreError> {
        let none = || Rejection::new(Check::NothingThere, "no update is in force or on trial");
        let state = self.state.roll_back(reason).ok_or_else(none)?;
        self.decide(state)?;
        self.settle();
        Ok(())
    }

    /// Brings the disk up to a state that is decided. Should that fail, the decision stands, every reader sees it, and the next opening goes on.
    fn settle(&mut self) {
        let _ = self.recover();
    }
}

fn not_on_trial(slot: &SlotName) -> Rejection {
    Rejection::new(Check::NothingThere, format!("{slot} is not on trial"))
}

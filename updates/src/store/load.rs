//! Reading the store, without changing it: what it holds is checked, and what does not hold up is passed over.

use super::{CHECKPOINT, DATASTORE, FLOOR, LINKS, SLOTS, STATE, STORE, Slot};
use crate::check::Rejection;
use crate::disk::Disk;
use crate::manifest::{Manifest, SlotName};
use crate::state::State;
use serde_json::Value;
use skip_tables::{Digest, MAX_BYTES};
use std::io;
use std::path::{Path, PathBuf};

/// What a reader sees: the same that [`super::Store::open`] makes true on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The state, without slots that are damaged.
    pub state: State,
    /// The highest version ever committed.
    pub floor: u64,
    /// The committed slot.
    pub active: Option<Slot>,
    /// The slot to return to.
    pub previous: Option<Slot>,
    /// The slot on trial.
    pub trial: Option<Slot>,
    /// What was found damaged and passed over.
    pub problems: Vec<String>,
}

impl View {
    /// Reads a store; one that is not there is empty.
    ///
    /// # Errors
    /// What the file system gives; damage is passed over, and told in `problems`.
    pub fn read(disk: &impl Disk) -> Result<Self, Rejection> {
        let mut problems = Vec::new();
        let recorded = match optional(disk, Path::new(STATE))? {
            None => by_links(disk)?,
            Some(bytes) => match read_state(&bytes) {
                Ok(state) => state,
                Err(why) => {
                    problems.push(format!("{STATE} is damaged ({why}): the links tell the committed slot, and no trial is known"));
                    by_links(disk)?
                }
            },
        };
        let mut load = |name: &Option<SlotName>| match name.as_ref().map(|name| slot(disk, name)) {
            None => Ok(None),
            Some(Ok(slot)) => Ok(Some(slot)),
            Some(Err(Flaw::Damaged(why))) => {
                problems.push(why);
                Ok(None)
            }
            Some(Err(Flaw::Io(error))) => Err(error),
        };
        let (active, previous, trial) = (load(&recorded.active)?, load(&recorded.previous)?, load(&recorded.trial)?);
        let whole: Vec<SlotName> = [&active, &previous, &trial].into_iter().flatten().map(|s| s.name.clone()).collect();
        let state = recorded.without(|name| !whole.contains(name));
        let of =
            |name: &Option<SlotName>| [&active, &previous, &trial].into_iter().flatten().find(|s| Some(&s.name) == name.as_ref()).cloned();
        let (active, previous, trial) = (of(&state.active), of(&state.previous), of(&state.trial));
        let floor = floor(disk, &active, &mut problems)?;
        Ok(Self { state, floor, active, previous, trial, problems })
    }

    /// The latest moment that is known to have passed, in seconds since 1970: signed updates tell when they were made.
    pub fn known_time(&self) -> u64 {
        [&self.active, &self.previous, &self.trial].into_iter().flatten().map(|slot| slot.manifest.created).max().unwrap_or_default()
    }
}

/// The highest version ever committed: what `floor` says, and where it is damaged, what else tells of commits.
fn floor(disk: &impl Disk, active: &Option<Slot>, problems: &mut Vec<String>) -> Result<u64, Rejection> {
    let written = match optional(disk, Path::new(FLOOR))? {
        None => 0,
        Some(bytes) => read_floor(&bytes).unwrap_or_else(|| {
            problems.push(format!("{FLOOR} is damaged: taken from the slots and metadata committed here"));
            0
        }),
    };
    Ok(written.max(active.as_ref().map_or(0, |slot| slot.name.version())).max(recorded_version(disk)?))
}

/// The version in the metadata last committed; 0 where there is none, or none that can be read.
fn recorded_version(disk: &impl Disk) -> Result<u64, Rejection> {
    let bytes = optional(disk, &Path::new(DATASTORE).join("targets.json"))?;
    Ok(bytes.and_then(|bytes| version_of(&bytes)).unwrap_or_default())
}

/// The version of a role's metadata.
pub(super) fn version_of(metadata: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(metadata).ok()?;
    value.get("signed")?.get("version")?.as_u64()
}

/// Why a slot cannot be had.
pub(super) enum Flaw {
    /// It is not whole, and will not be again.
    Damaged(String),
    /// The disk does not give it, now; nothing may be thrown away for that.
    Io(Rejection),
}

/// Reads a slot and checks everything in it.
pub(super) fn slot(disk: &impl Disk, name: &SlotName) -> Result<Slot, Flaw> {
    let damaged = |what: &str| Flaw::Damaged(format!("slot {name}: {what}"));
    let folder = Path::new(SLOTS).join(name.to_string());
    let read = |path: &Path| optional(disk, path).map_err(Flaw::Io)?.ok_or_else(|| damaged(&format!("{} is not there", path.display())));
    let manifest = read(&folder.join("manifest.json"))?;
    let parsed = Manifest::parse(&manifest).map_err(|e| damaged(&e.message))?;
    if SlotName::of(parsed.version, &manifest) != *name {
        return Err(damaged("manifest.json is of another slot"));
    }
    let checkpoint = read(&folder.join(CHECKPOINT))?;
    let checkpoint = unsealed(&checkpoint).and_then(|text| text.parse().ok()).ok_or_else(|| damaged("its checkpoint is not told"))?;
    let entry = parsed.entry(checkpoint).map_err(|e| damaged(&e.message))?.clone();
    let path = tables_path(entry.sha256);
    let tables = read(&path)?;
    if Digest::of(&tables) != entry.sha256 {
        return Err(damaged(&format!("{} is not what was put there", path.display())));
    }
    Ok(Slot { name: name.clone(), manifest: parsed, entry, path, tables })
}

/// Where tables of a digest lie.
pub(super) fn tables_path(digest: Digest) -> PathBuf {
    Path::new(STORE).join(format!("{digest}.json"))
}

/// A file's bytes; None where there is none.
pub(super) fn optional(disk: &impl Disk, path: &Path) -> Result<Option<Vec<u8>>, Rejection> {
    match disk.read(path, MAX_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Rejection::io(path.display(), &error)),
    }
}

/// The state that the links alone tell.
fn by_links(disk: &impl Disk) -> Result<State, Rejection> {
    let [active, previous] = LINKS.map(|link| linked(disk, link));
    Ok(State { active: active?, previous: previous?, ..State::default() })
}

/// The slot that a link leads to.
fn linked(disk: &impl Disk, link: &str) -> Result<Option<SlotName>, Rejection> {
    match disk.read_link(Path::new(link)) {
        Ok(target) => Ok(target.strip_prefix(SLOTS).ok().and_then(|name| name.to_str()?.parse().ok())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(None),
        Err(error) => Err(Rejection::io(link, &error)),
    }
}

/// A text with its digest: a flipped bit in a number would else go unseen.
pub(super) fn sealed(text: &str) -> String {
    format!("{text}\n{}\n", Digest::of(text.as_bytes()))
}

fn unsealed(bytes: &[u8]) -> Option<&str> {
    let whole = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (text, digest) = whole.rsplit_once('\n')?;
    // One spelling: the parse alone would take a digest in capitals.
    (digest == Digest::of(text.as_bytes()).to_string()).then_some(text)
}

fn read_floor(bytes: &[u8]) -> Option<u64> {
    unsealed(bytes)?.parse().ok()
}

/// The file's form: the state's fields, and a digest over them.
pub(super) fn written_state(state: &State) -> String {
    let mut value = serde_json::to_value(state).unwrap_or_default();
    let digest = Digest::of(value.to_string().as_bytes());
    if let Value::Object(object) = &mut value {
        object.insert("sha256".into(), digest.to_string().into());
    }
    let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads `state.json`.
fn read_state(bytes: &[u8]) -> Result<State, String> {
    let mut value = skip_tables::parse_json(bytes).map_err(|e| e.to_string())?;
    let digest = value.as_object_mut().and_then(|object| object.remove("sha256"));
    let expected = Digest::of(value.to_string().as_bytes()).to_string();
    if digest.as_ref().and_then(Value::as_str) != Some(&expected) {
        return Err("its digest is of something else".into());
    }
    serde_json::from_value(value).map_err(|e| e.to_string())
}

/// Reads what a fuzzer makes up as every small file of the store.
#[doc(hidden)]
pub fn fuzz_small_files(bytes: &[u8]) {
    if let Ok(state) = read_state(bytes) {
        assert_eq!(read_state(written_state(&state).as_bytes()), Ok(state));
    }
    let _ = (read_floor(bytes), version_of(bytes));
    if let Ok(manifest) = Manifest::parse(bytes) {
        let written = serde_json::to_vec(&manifest).unwrap_or_default();
        assert_eq!(Manifest::parse(&written), Ok(manifest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_and_any_flipped_bit_is_seen() {
        let name = SlotName::of(7, b"manifest");
        let state = State::default().stage(name.clone()).commit(&name).unwrap().stage(SlotName::of(8, b"other"));
        let text = written_state(&state);
        assert_eq!(read_state(text.as_bytes()), Ok(state.clone()));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // White space may turn into other white space; nothing else may change unseen.
            assert!(read_state(&bytes).map_or(true, |read| read == state), "bit {bit}");
        }
    }

    #[test]
    fn a_floor_reads_back_and_any_flipped_bit_or_cut_is_seen() {
        let text = sealed("41");
        assert_eq!(read_floor(text.as_bytes()), Some(41));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_floor(&bytes), None, "bit {bit}");
        }
        for len in 0..text.len() {
            assert_eq!(read_floor(&text.as_bytes()[..len]), None, "{len} bytes");
        }
        assert_eq!(read_floor(&vec![0; text.len()]), None);
    }
}

//! Files of a store that rot: cut, zeroed or with a bit flipped, and what is in force then.

use crate::model::Model;
use crate::updates::{assert_same, assert_whole, slot, tables, tree, update};
use skip_tables::Digest;
use skip_updates::{Check, Disk, Store, View};
use std::path::{Path, PathBuf};

type Damage = (&'static str, fn(&mut Vec<u8>));

const DAMAGE: [Damage; 5] = [
    ("cut to nothing", Vec::clear),
    ("cut to half", |bytes| bytes.truncate(bytes.len() / 2)),
    ("zeroed", |bytes| bytes.fill(0)),
    ("with a bit flipped in the middle", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }),
    ("with bytes added", |bytes| bytes.extend_from_slice(b"x")),
];

/// Versions 1 and 2 committed, 3 on trial.
fn full() -> Model {
    let mut store = Store::open(Model::new()).unwrap();
    for version in [1, 2] {
        store.stage(&update(version)).unwrap();
        store.commit(&slot(version)).unwrap();
    }
    store.stage(&update(3)).unwrap();
    store.disk().settled()
}

fn in_store(version: u64) -> PathBuf {
    Path::new("store").join(format!("{}.json", Digest::of(&tables(version))))
}

fn in_slot(version: u64, file: &str) -> PathBuf {
    Path::new("slots").join(slot(version).to_string()).join(file)
}

/// Reads, opens, and tells active, previous and trial.
fn found(disk: &Model, what: &str) -> [Option<u64>; 3] {
    let view = View::read(disk).unwrap();
    assert_whole_but_link(disk, &view, what);
    let store = Store::open(disk.clone()).unwrap();
    assert_eq!((store.state(), store.floor()), (&view.state, view.floor), "{what}");
    let view = View::read(disk).unwrap();
    assert_whole(disk, &view, what);
    [&view.active, &view.previous, &view.trial].map(|s| s.as_ref().map(|s| s.name.version()))
}

/// Before recovery the link may lead to what has rotted.
fn assert_whole_but_link(_: &Model, view: &View, what: &str) {
    for slot in [&view.active, &view.previous, &view.trial].into_iter().flatten() {
        assert_eq!(slot.tables, tables(slot.name.version()), "{what}");
    }
    assert!(!view.problems.is_empty(), "{what}: damage is told");
}

fn each(path: &Path, expected: [Option<u64>; 3]) {
    for (how, damage) in DAMAGE {
        let disk = full();
        disk.damage(path, damage);
        let what = format!("{} {how}", path.display());
        assert_eq!(found(&disk, &what), expected, "{what}");
        assert_eq!(View::read(&disk).unwrap().floor, 2, "{what}: an old version cannot come back");
    }
}

#[test]
fn a_damaged_active_slot_gives_way_to_the_previous() {
    for path in [in_store(2), in_slot(2, "manifest.json"), in_slot(2, "checkpoint")] {
        each(&path, [Some(1), None, Some(3)]);
    }
}

#[test]
fn a_damaged_previous_slot_is_forgotten() {
    for path in [in_store(1), in_slot(1, "manifest.json"), in_slot(1, "checkpoint")] {
        each(&path, [Some(2), None, Some(3)]);
    }
}

#[test]
fn a_damaged_trial_ends() {
    for path in [in_store(3), in_slot(3, "manifest.json"), in_slot(3, "checkpoint")] {
        each(&path, [Some(2), Some(1), None]);
    }
}

#[test]
fn a_damaged_state_leaves_the_committed_slots_by_their_links() {
    each(Path::new("state.json"), [Some(2), Some(1), None]);
}

#[test]
fn a_damaged_floor_is_taken_from_what_was_committed() {
    each(Path::new("floor"), [Some(2), Some(1), Some(3)]);
    // Also after a rollback, when no slot in force tells of it any more.
    for (how, damage) in DAMAGE {
        let mut store = Store::open(full()).unwrap();
        store.roll_back("asked").unwrap();
        store.roll_back("asked").unwrap();
        store.disk().damage(Path::new("floor"), damage);
        let mut store = Store::open(store.disk().clone()).unwrap();
        assert_eq!((store.state().active.clone(), store.floor()), (Some(slot(1)), 2), "{how}");
        assert_eq!(store.stage(&update(2)).unwrap_err().check, Check::Replay, "{how}");
    }
}

#[test]
fn all_slots_damaged_is_no_update_at_all() {
    for (how, damage) in DAMAGE {
        let disk = full();
        for version in 1..=3 {
            disk.damage(&in_store(version), damage);
        }
        assert_eq!(found(&disk, how), [None; 3], "{how}");
        assert_eq!(View::read(&disk).unwrap().floor, 2, "{how}");
        assert_eq!(disk.list(Path::new("slots")).unwrap(), Vec::<String>::new(), "{how}");
        let mut store = Store::open(disk).unwrap();
        store.stage(&update(4)).unwrap();
    }
}

#[test]
fn strangers_in_the_store_are_removed_and_nothing_else() {
    let disk = full();
    let before = tree(&disk);
    for path in ["incoming/half.json", "slots/9-01234567/manifest.json", "store/stranger.json"] {
        let path = Path::new(path);
        let parent = path.parent().unwrap();
        if !disk.is_dir(parent).unwrap() {
            disk.make_dir(parent).unwrap();
        }
        disk.create(path).unwrap();
    }
    Store::open(disk.clone()).unwrap();
    assert_same(&tree(&disk), &before, "cleared");
}

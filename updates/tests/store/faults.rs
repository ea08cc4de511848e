//! Each transition with each of its operations on the disk failing in turn, and with the power cut before each: what is found afterwards is the state
//! before or the one after, whole, and the transition can be done again.

use crate::model::{Fault, Model};
use crate::updates::{assert_same, assert_whole, slot, tree, update};
use skip_updates::{Begun, Check, Disk, Rejection, State, Store, View};
use std::io::ErrorKind;

type Operation = fn(&mut Store<Model>) -> Result<(), Rejection>;

fn stage(store: &mut Store<Model>, version: u64) -> Result<(), Rejection> {
    store.stage(&update(version)).map(drop)
}

fn begin(store: &mut Store<Model>) -> Result<(), Rejection> {
    store.begin().map(drop)
}

fn commit(store: &mut Store<Model>, version: u64) -> Result<(), Rejection> {
    store.commit(&slot(version))
}

/// What is done to the store before, and the transition that is disturbed.
const TRANSITIONS: [(&str, &[Operation], Operation); 11] = [
    ("the first update is staged", &[], |s| stage(s, 1)),
    ("the first update is committed", &[|s| stage(s, 1), begin], |s| commit(s, 1)),
    ("the first update fails", &[|s| stage(s, 1), begin], |s| s.fail(&slot(1), "skips nothing")),
    ("a second update is staged", &[|s| stage(s, 1), |s| commit(s, 1)], |s| stage(s, 2)),
    ("a trial is begun", &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2)], begin),
    ("a second update is committed", &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2)], |s| commit(s, 2)),
    ("a third update takes the place of the second's trial", &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2)], |s| stage(s, 3)),
    (
        "a third update is committed and the first goes",
        &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2), |s| commit(s, 2), |s| stage(s, 3)],
        |s| commit(s, 3),
    ),
    ("a trial without tries is given up", &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2), begin, begin, begin], begin),
    ("the second update is rolled back", &[|s| stage(s, 1), |s| commit(s, 1), |s| stage(s, 2), |s| commit(s, 2)], |s| s.roll_back("asked")),
    ("the only update is rolled back", &[|s| stage(s, 1), |s| commit(s, 1)], |s| s.roll_back("asked")),
];

struct Case {
    name: &'static str,
    before: Model,
    operation: Operation,
    state_before: State,
    state_after: State,
    floors: [u64; 2],
    tree_before: Vec<String>,
    tree_after: Vec<String>,
}

fn cases() -> impl Iterator<Item = Case> {
    TRANSITIONS.into_iter().map(|(name, setup, operation)| {
        let mut store = Store::open(Model::new()).unwrap();
        for step in setup {
            step(&mut store).unwrap();
        }
        let before = store.disk().settled();
        let (state_before, floor_before, tree_before) = (store.state().clone(), store.floor(), tree(&before));
        let mut store = Store::open(before.with(Fault::None)).unwrap();
        operation(&mut store).unwrap();
        assert_ne!(*store.state(), state_before, "{name}");
        let (state_after, floors) = (store.state().clone(), [floor_before, store.floor()]);
        Case { name, before, operation, state_before, state_after, floors, tree_before, tree_after: tree(store.disk()) }
    })
}

/// Opens the store and does the transition on a disk with a fault; the disk, what came of it, and whether the fault was met.
fn run(case: &Case, fault: Fault) -> (Model, Result<(), Rejection>) {
    let disk = case.before.with(fault);
    let result = Store::open(disk.clone()).and_then(|mut store| (case.operation)(&mut store));
    (disk, result)
}

/// How many operations opening and transition take undisturbed.
fn operations(case: &Case) -> usize {
    let (disk, result) = run(case, Fault::None);
    result.unwrap();
    disk.operations()
}

/// A reader, and then the next opening, find the state before or the one after; done again, the transition comes to its end.
fn assert_recovers(case: &Case, disk: &Model, what: &str) {
    let view = View::read(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_whole(disk, &view, what);
    assert!(view.problems.is_empty(), "{what}: {:?}", view.problems);
    assert!([&case.state_before, &case.state_after].contains(&&view.state), "{what}: {:?}", view.state);
    assert!(case.floors.contains(&view.floor), "{what}: floor {}", view.floor);

    let mut store = Store::open(disk.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((store.state(), store.floor()), (&view.state, view.floor), "{what}: what is opened is what was read");
    assert_whole(disk, &View::read(disk).unwrap(), what);
    if *store.state() == case.state_before {
        assert_same(&tree(disk), &case.tree_before, what);
        (case.operation)(&mut store).unwrap_or_else(|e| panic!("{what}: again: {e}"));
    }
    assert_eq!(*store.state(), case.state_after, "{what}");
    assert_same(&tree(disk), &case.tree_after, what);
}

#[test]
fn whichever_operation_fails_the_store_is_before_or_after() {
    for case in cases() {
        for at in 0..operations(&case) {
            for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
                let (disk, result) = run(&case, Fault::Once(at, kind));
                let what = format!("{}, operation {at} fails", case.name);
                if result.is_ok() {
                    // It failed while the disk was brought up to a decision, which stands.
                    assert_eq!(View::read(&disk.with(Fault::None)).unwrap().state, case.state_after, "{what}");
                }
                assert_recovers(&case, &disk.with(Fault::None), &what);
            }
        }
    }
}

#[test]
fn a_disk_that_takes_nothing_any_more_from_any_operation_on_leaves_the_store_before_or_after() {
    for (kind, check) in [(ErrorKind::StorageFull, Check::NoSpace), (ErrorKind::ReadOnlyFilesystem, Check::ReadOnly)] {
        for case in cases() {
            for at in 0..operations(&case) {
                let (disk, result) = run(&case, Fault::From(at, kind));
                let what = format!("{}, from operation {at} on {kind}", case.name);
                match result {
                    Ok(()) => assert_eq!(View::read(&disk).unwrap().state, case.state_after, "{what}"),
                    Err(error) => assert_eq!(error.check, check, "{what}"),
                }
                assert_recovers(&case, &disk.with(Fault::None), &what);
                // A reader is not kept from reading by what keeps a writer from writing.
                let view = View::read(&disk).unwrap();
                assert_whole(&disk, &view, &what);
            }
        }
    }
}

#[test]
fn whenever_the_power_is_cut_the_store_is_before_or_after() {
    let mut cuts = 0;
    for case in cases() {
        for at in 0..operations(&case) {
            let (disk, _) = run(&case, Fault::Stop(at));
            for seed in 0..24 {
                let what = format!("{}, power cut before operation {at}, seed {seed}", case.name);
                assert_recovers(&case, &disk.cut(seed), &what);
                cuts += 1;
            }
        }
    }
    assert!(cuts > 10_000, "{cuts}");
}

#[test]
fn power_cut_again_and_again_while_recovering_does_no_harm() {
    for case in cases() {
        for at in (0..operations(&case)).step_by(3) {
            let (disk, _) = run(&case, Fault::Stop(at));
            let mut disk = disk.cut(at as u64);
            for again in 0..12 {
                let stopped = disk.with(Fault::Stop(again));
                let _ = Store::open(stopped.clone());
                disk = stopped.cut(again as u64 + 100);
            }
            assert_recovers(&case, &disk, &format!("{}, power cut before operation {at} and then while recovering", case.name));
        }
    }
}

#[test]
fn a_transition_that_was_acknowledged_outlasts_a_cut_of_power() {
    for case in cases() {
        let (disk, result) = run(&case, Fault::None);
        result.unwrap();
        for seed in 0..50 {
            let disk = disk.cut(seed);
            assert_eq!(View::read(&disk).unwrap().state, case.state_after, "{}, seed {seed}", case.name);
        }
    }
}

#[test]
fn an_update_that_is_refused_leaves_every_byte_as_it_was() {
    let mut store = Store::open(Model::new()).unwrap();
    stage(&mut store, 2).unwrap();
    commit(&mut store, 2).unwrap();
    let before = tree(store.disk());
    for version in [1, 2] {
        assert_eq!(store.stage(&update(version)).unwrap_err().check, Check::Replay);
    }
    let mut mixed = update(3);
    mixed.tables.push(b' ');
    assert_eq!(store.stage(&mixed).unwrap_err().check, Check::Hash);
    assert_same(&tree(store.disk()), &before, "refused");
}

#[test]
fn a_version_that_was_rolled_back_cannot_come_back() {
    let mut store = Store::open(Model::new()).unwrap();
    for version in [1, 2] {
        stage(&mut store, version).unwrap();
        commit(&mut store, version).unwrap();
    }
    store.roll_back("asked").unwrap();
    assert_eq!(store.state().active, Some(slot(1)));
    assert_eq!(store.stage(&update(2)).unwrap_err().check, Check::Replay);
    stage(&mut store, 3).unwrap();
}

#[test]
fn a_version_that_failed_its_trial_may_be_tried_again() {
    let mut store = Store::open(Model::new()).unwrap();
    stage(&mut store, 1).unwrap();
    store.fail(&slot(1), "too slow").unwrap();
    assert_eq!((store.floor(), store.state().active.clone()), (0, None));
    stage(&mut store, 1).unwrap();
    assert!(matches!(store.begin().unwrap(), Begun::Try(name, _) if name == slot(1)));
}

#[test]
fn opening_a_store_that_is_in_order_writes_nothing() {
    for case in cases() {
        let disk = case.before.with(Fault::From(0, ErrorKind::ReadOnlyFilesystem));
        Store::open(disk.clone()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    }
    // Nor where there is none yet.
    let disk = Model::new().with(Fault::From(0, ErrorKind::ReadOnlyFilesystem));
    Store::open(disk.clone()).unwrap();
    assert!(disk.list(std::path::Path::new("")).unwrap().is_empty());
}

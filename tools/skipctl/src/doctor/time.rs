//! The clock, and the updates whose expiry is judged by it.

use super::finding::{Check, Finding, Problem, warning};
use super::machine::Machine;
use skip_platform::Sysfs;
use skip_updates::{BUILT_AFTER, RealDisk, View};

/// The clock.
pub static CHECK_CLOCK: Check = Check {
    name: "clock",
    about: "the clock shows no time that has passed for sure, and is synchronised",
    unless: None,
    problems: &[&PAST, &ALONE],
};
static PAST: Problem = warning(
    "it does: updates are refused, as their expiry cannot be judged",
    "connect the machine to a network with a time server, or `sudo timedatectl set-time 'YYYY-MM-DD hh:mm:ss'`; a board without a battery loses its clock with its power",
);
static ALONE: Problem = warning("it is not", "`sudo timedatectl set-ntp true`, and a time server that can be reached");

/// Updates.
pub static CHECK_UPDATES: Check = Check {
    name: "updates",
    about: "the store of signed tables is whole: its floor, the slot in force and the one before",
    unless: Some("there is no store, or the caller may not read it"),
    problems: &[&DAMAGED, &GIVEN_UP],
};
static DAMAGED: Problem =
    warning("something in it is damaged and passed over", "`sudo skipctl update apply BUNDLE` of a version above {floor}");
static GIVEN_UP: Problem = warning(
    "the last update was given up",
    "`skipctl update show`, and a bundle that is right for this checkpoint; its version has to be above {floor}",
);

/// Looks at the clock.
pub fn clock(machine: &Machine) -> Finding {
    let known = view(machine).ok().flatten().map_or(0, |view| view.known_time());
    let passed = known.max(BUILT_AFTER);
    let synchronized = machine.told.synchronized.or_else(|| machine.files().exists("/run/systemd/timesync/synchronized").then_some(true));
    match (machine.now < passed, synchronized) {
        (true, _) => CHECK_CLOCK.problem(&PAST, format!("second {} since 1970; {passed} has passed", machine.now)),
        (false, Some(false)) => CHECK_CLOCK.problem(&ALONE, "not synchronised"),
        (false, Some(true)) => CHECK_CLOCK.ok("synchronised"),
        (false, None) => CHECK_CLOCK.ok("no time that has passed; nobody says whether it is synchronised"),
    }
}

/// Looks at the store.
pub fn updates(machine: &Machine) -> Finding {
    match view(machine) {
        Ok(Some(view)) => judge(&view),
        Ok(None) => CHECK_UPDATES.inapplicable("no update was ever taken"),
        Err(why) => CHECK_UPDATES.inapplicable(why),
    }
}

fn judge(view: &View) -> Finding {
    let floor = view.floor.to_string();
    let slot = |slot: &Option<skip_updates::Slot>| slot.as_ref().map_or("none".into(), |slot| slot.name.to_string());
    let seen = format!("floor {floor}, in force {}, before {}, on trial {}", slot(&view.active), slot(&view.previous), slot(&view.trial));
    if !view.problems.is_empty() {
        return CHECK_UPDATES.problem(&DAMAGED, format!("{}; {seen}", view.problems.join("; "))).with("floor", &floor);
    }
    match &view.state.reason {
        Some(reason) => CHECK_UPDATES.problem(&GIVEN_UP, format!("{reason}; {seen}")).with("floor", &floor),
        None => CHECK_UPDATES.ok(seen),
    }
}

/// The store; None where there is none.
fn view(machine: &Machine) -> Result<Option<View>, String> {
    let folder = machine.place(machine.config.state().join("tables"));
    match std::fs::read_dir(&folder) {
        Ok(_) => View::read(&RealDisk::new(folder)).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}; ask again with sudo", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::assert_covers;
    use crate::doctor::testing::Tree;

    const STORE: &str = "/var/lib/skipd/tables";

    #[test]
    fn a_clock_that_shows_what_has_passed_is_wrong_before_it_is_alone() {
        let tree = Tree::empty();
        let of = |now, synchronized| {
            let mut machine = tree.machine();
            (machine.now, machine.told.synchronized) = (now, synchronized);
            clock(&machine)
        };
        let found = [
            of(BUILT_AFTER, Some(true)),
            of(BUILT_AFTER, None),
            of(BUILT_AFTER, Some(false)),
            of(BUILT_AFTER - 1, Some(true)),
            of(0, None),
        ];
        assert_covers(&CHECK_CLOCK, &found);
        assert_eq!((found[3].problem, found[4].problem), (Some(&PAST), Some(&PAST)));
        // timesyncd's own mark, where no bus is asked.
        tree.set("/run/systemd/timesync/synchronized", "");
        assert_eq!(of(BUILT_AFTER, None).seen, "synchronised");
    }

    #[test]
    fn a_store_tells_its_floor_and_what_is_damaged() {
        let (empty, damaged) = (Tree::empty(), Tree::empty());
        std::fs::create_dir_all(empty.path(STORE)).unwrap();
        damaged.set(&format!("{STORE}/floor"), "7\n");
        let reason = Some("7-0123abcd: skips nothing".into());
        let left = View { state: skip_updates::State { reason, ..Default::default() }, floor: 6, ..View::default() };
        let found = [updates(&empty.machine()), updates(&damaged.machine()), judge(&left), updates(&Tree::empty().machine())];
        assert_covers(&CHECK_UPDATES, &found);
        assert!(found[0].seen.starts_with("floor 0, in force none"), "{}", found[0].seen);
        assert!(found[1].seen.starts_with("floor is damaged"), "{}", found[1].seen);
        assert!(found[2].remedy.as_ref().unwrap().ends_with("above 6"));
    }
}

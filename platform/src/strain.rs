//! Whether clocks are held down at this moment: what a scheduler goes by. [`watch`](crate::watch()) goes by all that happened since a profile was
//! applied, and so does who compares measurements.

use crate::board::{Board, BoardKind};
use crate::sensors::counters;
use crate::state::{StateFile, boot_id};
use crate::watch::{hot, slow};
use std::collections::BTreeMap;

/// Follows a board look by look.
pub struct Strain {
    board: Board,
    state: StateFile,
    /// Nobody says of other machines what their trip points and counters mean.
    is_board: bool,
    counters: BTreeMap<String, u64>,
}

impl Strain {
    /// Of a board, whose snapshot lies there.
    pub fn new(board: Board, state: StateFile) -> Self {
        let is_board = board.identify().kind != BoardKind::Generic;
        let mut strain = Self { board, state, is_board, counters: BTreeMap::new() };
        strain.counters = strain.count();
        strain
    }

    /// What holds clocks down now: a domain that runs below its pinned minimum, a zone that is too warm, a counter that rose since the last look.
    /// Of a machine that is no known board, only while a profile is applied.
    pub fn look(&mut self) -> Vec<String> {
        let files = self.board.sysfs();
        let snapshot = self.state.load().ok().flatten().filter(|snapshot| boot_id(files).is_some_and(|ours| ours == snapshot.boot_id));
        let now = self.count();
        let before = std::mem::replace(&mut self.counters, now);
        if snapshot.is_none() && !self.is_board {
            return Vec::new();
        }
        let mut reasons = snapshot.as_ref().map_or_else(Vec::new, |snapshot| slow(files, snapshot));
        reasons.extend(hot(files, snapshot.and_then(|snapshot| snapshot.tolerated)));
        let risen = self.counters.iter().filter(|(path, count)| before.get(*path).is_some_and(|then| *count > then));
        reasons.extend(risen.map(|(path, _)| format!("{path} rises")));
        reasons
    }

    fn count(&self) -> BTreeMap<String, u64> {
        counters(self.board.sysfs()).into_iter().map(|counter| (counter.path, counter.count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use crate::{Profiles, apply};

    const OVER_CURRENT: &str = "/sys/class/hwmon/hwmon5/oc2_event_cnt";

    fn strain(tree: &Tree) -> Strain {
        Strain::new(Board::at(tree.root()), StateFile::of_root(tree.root()))
    }

    #[test]
    fn a_counter_strains_in_the_look_in_which_it_rose_and_no_longer() {
        let tree = Tree::new("thor-r39");
        let mut strain = strain(&tree);
        assert_eq!(strain.look(), [""; 0]);
        tree.set(OVER_CURRENT, "3\n");
        let reasons = strain.look();
        assert!(matches!(&reasons[..], [one] if one.contains("oc2_event_cnt rises")), "{reasons:?}");
        assert_eq!(strain.look(), [""; 0]);
    }

    #[test]
    fn heat_strains_a_board_without_a_profile_too() {
        let tree = Tree::new("thor-r39");
        tree.set("/sys/class/thermal/thermal_zone0/temp", "101000\n");
        let reasons = strain(&tree).look();
        assert!(matches!(&reasons[..], [one] if one.contains("101.0")), "{reasons:?}");
    }

    #[test]
    fn a_pinned_domain_that_is_slow_strains_until_it_is_not() {
        let tree = Tree::new("thor-r39");
        let board = Board::at(tree.root());
        apply(&board, &Profiles::new(board.sysfs()).load("thor-120w").unwrap(), &StateFile::of_root(tree.root())).unwrap();
        let mut strain = strain(&tree);
        // The tree's clocks stand where they stood: nothing moves them.
        assert!(strain.look().iter().any(|reason| reason.contains("gpu-gpc-0 runs at 315000000")));
        for (domain, now) in [("gpu-gpc-0", "1575000000"), ("gpu-nvd-0", "1692000000"), ("bwmgr", "4266000000")] {
            tree.set(&format!("/sys/class/devfreq/{domain}/cur_freq"), now);
        }
        for policy in 0..2 {
            tree.set(&format!("/sys/devices/system/cpu/cpufreq/policy{policy}/cpuinfo_cur_freq"), "2601000");
        }
        assert_eq!(strain.look(), [""; 0]);
    }

    #[test]
    fn a_machine_that_is_no_known_board_is_not_judged_by_its_trip_points() {
        let tree = Tree::new("x86");
        tree.set("/sys/class/thermal/thermal_zone9/type", "acpitz\n");
        tree.set("/sys/class/thermal/thermal_zone9/temp", "60000\n");
        tree.set("/sys/class/thermal/thermal_zone9/trip_point_0_type", "passive\n");
        tree.set("/sys/class/thermal/thermal_zone9/trip_point_0_temp", "20000\n");
        assert_eq!(strain(&tree).look(), [""; 0]);
    }
}

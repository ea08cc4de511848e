//! What memory the system can give this process: what it has available, and the room under the limits of the control groups above the process.
//! Nothing else reads `/proc/meminfo`.

mod groups;

pub use groups::Room;

use crate::ledger::{Ledger, Source};
use std::path::PathBuf;

/// Where the system tells of its memory.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl System {
    /// For tests: the system whose `proc` and control groups lie below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Bytes the kernel thinks can be had without swapping (`MemAvailable`); None where it does not say.
    pub fn available(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Of the control groups above this process that have a memory limit, the one with the least room; None where none has.
    pub fn tightest_group(&self) -> Option<Room> {
        groups::tightest(&self.root)
    }

    /// `ledger` with what memory of the process's own can be had: the lesser of both. None where nobody says.
    pub fn bounds(&self, ledger: Ledger) -> Option<Ledger> {
        let available = self.available();
        match self.tightest_group().filter(|room| available.is_none_or(|bytes| room.bytes < bytes)) {
            Some(room) => Some(Ledger { free: room.bytes, source: Source::Group(room.group), ..ledger }),
            None => Some(Ledger { free: available?, source: Source::System, ..ledger }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       64305152 kB\nMemFree:         1000000 kB\nMemAvailable:   40000000 kB\n";

    fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let system = System::at(root.path());
        (root, system)
    }

    #[test]
    fn what_the_kernel_calls_available_can_be_had_and_nothing_is_guessed() {
        let (_root, told) = system(&[("proc/meminfo", MEMINFO)]);
        assert_eq!(told.available(), Some(40_000_000 * 1024));
        for untold in ["MemTotal: 1 kB\n", "MemAvailable: many kB\n", "MemAvailable:\n", "MemAvailable: 18446744073709551615 kB\n"] {
            assert_eq!(system(&[("proc/meminfo", untold)]).1.available(), None, "{untold}");
        }
        assert!(system(&[]).1.bounds(Ledger::default()).is_none());
    }

    #[test]
    fn the_lesser_of_system_and_control_group_bounds_a_ledger() {
        let group = |limit: &'static str| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/mountinfo", "25 1 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
                ("proc/self/cgroup", "0::/skipd.service\n"),
                ("sys/fs/cgroup/skipd.service/memory.max", limit),
                ("sys/fs/cgroup/skipd.service/memory.current", "4096"),
                ("sys/fs/cgroup/skipd.service/memory.stat", "inactive_file 0\n"),
            ]
        };
        let bounded = |limit| {
            let (_root, system) = system(&group(limit));
            let ledger = system.bounds(Ledger::default()).unwrap();
            (ledger.free, ledger.source)
        };
        assert_eq!(bounded("1048576"), (1_048_576 - 4096, Source::Group("/skipd.service".into())));
        assert_eq!(bounded("max"), (40_000_000 * 1024, Source::System));
        assert_eq!(bounded("1099511627776"), (40_000_000 * 1024, Source::System), "the system has less than the limit allows");
    }
}

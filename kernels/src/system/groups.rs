//! Control groups with a memory limit, of version 2 (`memory.max`) and 1 (`memory.limit_in_bytes`): a process may take no more than every one
//! above it leaves.

use std::path::{Path, PathBuf};

/// Version 1 says "no limit" with a number near the largest there is, rounded down to pages.
const NO_LIMIT: u64 = 1 << 62;

/// What a control group leaves to its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its limit without what is in use; file pages that have not been used lately are not, for they give way.
    pub bytes: u64,
    /// Its path below where its hierarchy is mounted.
    pub group: String,
}

/// A hierarchy that accounts memory.
#[derive(Debug)]
struct Mount<'a> {
    version: Version,
    /// The group that is seen at `point`.
    root: &'a str,
    point: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The least room there is, of a process whose `proc/self` lies below `root`.
pub(super) fn tightest(root: &Path) -> Option<Room> {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    let (mounts, own) = (read("proc/self/mountinfo")?, read("proc/self/cgroup")?);
    let rooms = mounts.lines().filter_map(Mount::parse).flat_map(|mount| mount.rooms(root, &own));
    rooms.min_by_key(|room| room.bytes)
}

impl<'a> Mount<'a> {
    /// A line of mountinfo: `ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS`.
    fn parse(line: &'a str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", Some(options)) if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        let mut place = place.split(' ').skip(3);
        Some(Self { version, root: place.next()?, point: place.next()? })
    }

    /// The process's group and those above it, as far as they can be seen. `own` is `/proc/self/cgroup`.
    fn rooms(&self, root: &Path, own: &str) -> Vec<Room> {
        let point = root.join(self.point.trim_start_matches('/'));
        let Some(group) = self.group(own) else { return Vec::new() };
        let room = |group: &Path| {
            let bytes = self.room(&point.join(group))?;
            Some(Room { bytes, group: format!("/{}", group.display()) })
        };
        group.ancestors().filter_map(room).collect()
    }

    /// The process's group, relative to the mount. One that lies outside of what is mounted is not seen: then the mount's own is taken.
    fn group(&self, own: &str) -> Option<PathBuf> {
        let of_memory = |line: &&str| {
            let mut parts = line.splitn(3, ':');
            match (parts.next(), parts.next(), self.version) {
                (Some("0"), Some(""), Version::Two) => true,
                (_, Some(controllers), Version::One) => controllers.split(',').any(|controller| controller == "memory"),
                _ => false,
            }
        };
        let path = own.lines().find(of_memory)?.splitn(3, ':').nth(2)?;
        let inside = Path::new(path).strip_prefix(self.root).unwrap_or(Path::new(""));
        let plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        Some(if plain { inside.to_owned() } else { PathBuf::new() })
    }

    /// What the group in `folder` leaves; None where it has no limit.
    fn room(&self, folder: &Path) -> Option<u64> {
        let (limit, usage, idle) = match self.version {
            Version::Two => ("memory.max", "memory.current", "inactive_file"),
            Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        };
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        // `max` is no number.
        let limit: u64 = read(limit)?.trim().parse().ok().filter(|&limit| limit < NO_LIMIT)?;
        let used: u64 = read(usage)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.strip_prefix(' ')?.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(idle)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these groups: folder, limit, usage, idle file pages.
    fn tree(mounts: &str, own: &str, groups: &[(&str, &str, u64, u64)]) -> Option<Room> {
        let root = tempfile::tempdir().unwrap();
        let write = |name: String, text: String| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo".into(), mounts.into());
        write("proc/self/cgroup".into(), own.into());
        for (folder, limit, usage, idle) in groups {
            let v1 = folder.contains("/memory");
            let (max, now) = if v1 { ("memory.limit_in_bytes", "memory.usage_in_bytes") } else { ("memory.max", "memory.current") };
            let total = if v1 { "total_" } else { "" };
            write(format!("{folder}/{max}"), format!("{limit}\n"));
            write(format!("{folder}/{now}"), format!("{usage}\n"));
            write(format!("{folder}/memory.stat"), format!("anon 1\n{total}inactive_file {idle}\n{total}active_file 7\n"));
        }
        tightest(root.path())
    }

    const V2: &str = "24 1 8:1 / / rw - ext4 /dev/vda rw\n31 24 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn room(bytes: u64, group: &str) -> Option<Room> {
        Some(Room { bytes, group: group.into() })
    }

    #[test]
    fn every_group_above_the_process_bounds_it() {
        let own = "0::/system.slice/skipd.service\n";
        let slice = |limit| ("sys/fs/cgroup/system.slice", limit, 500, 0);
        let service = ("sys/fs/cgroup/system.slice/skipd.service", "1000", 300, 100);
        assert_eq!(tree(V2, own, &[slice("max"), service]), room(800, "/system.slice/skipd.service"));
        assert_eq!(tree(V2, own, &[slice("600"), service]), room(100, "/system.slice"));
        assert_eq!(tree(V2, own, &[slice("max")]), None, "no limit anywhere");
        assert_eq!(tree(V2, own, &[slice("400"), service]), room(0, "/system.slice"), "over its limit already");
        assert_eq!(tree(V2, own, &[("sys/fs/cgroup/other.slice", "10", 0, 0), service]), room(800, "/system.slice/skipd.service"));
    }

    #[test]
    fn a_hierarchy_of_version_one_is_read_beside_one_of_version_two() {
        let own = "4:memory:/box/inner\n1:cpu:/elsewhere\n0::/\n";
        let unlimited = ("sys/fs/cgroup/memory/box", "9223372036854771712", 0, 0);
        let inner = ("sys/fs/cgroup/memory/box/inner", "5000", 4000, 3000);
        assert_eq!(tree(V1, own, &[unlimited, inner]), room(4000, "/box/inner"));
        assert_eq!(tree(V1, own, &[unlimited]), None);
    }

    #[test]
    fn where_a_part_of_the_hierarchy_is_mounted_its_own_group_counts() {
        let container = "31 24 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let limited = ("sys/fs/cgroup", "1000", 0, 0);
        assert_eq!(tree(container, "0::/docker/abc\n", &[limited]), room(1000, "/"));
        assert_eq!(tree(container, "0::/../elsewhere\n", &[limited]), room(1000, "/"));
        assert_eq!(tree(V2, "0::/../elsewhere\n", &[limited]), room(1000, "/"));
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        assert_eq!(tree("nonsense\n\n - \n1 2 - cgroup2\n", "0::/a\n", &[("sys/fs/cgroup/a", "1", 0, 0)]), None);
        assert_eq!(tree(V2, "nonsense", &[("sys/fs/cgroup", "1", 0, 0)]), None);
        assert_eq!(tree(V2, "0::/a\n", &[("sys/fs/cgroup/a", "many", 0, 0)]), None);
    }
}

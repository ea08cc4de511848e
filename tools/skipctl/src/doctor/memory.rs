//! Memory against the model, limits of control groups, and swap.

use super::finding::{Check, Finding, Problem, failure, warning};
use super::machine::Machine;
use super::storage::weights;
use skip_platform::{Driver, Sysfs};
use std::path::Path;

/// What serving takes beside the weights, at the least: activations, a small cache, and what the daemon leaves to others.
const BESIDE: u64 = 512 << 20;
/// The service's control group, as systemd names it.
const GROUP: &str = "system.slice/skipd.service";
/// Where control groups of the second version are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Memory.
pub static CHECK_MEMORY: Check = Check {
    name: "memory",
    about: "the model's weights and 512 MiB beside them fit what is available (MemAvailable, which on a Jetson is the GPU's memory too)",
    unless: Some("no model is known or can be read, or the GPU has memory of its own"),
    problems: &[&TOO_SMALL, &LITTLE],
};
static TOO_SMALL: Problem =
    failure("the machine has less in all", "a smaller checkpoint, or a larger machine: the daemon refuses before it allocates");
static LITTLE: Problem = warning(
    "less is available now",
    "stop what takes it (`ps aux --sort=-rss | head`; without a desktop a Jetson has some 865 MB more); on L4T before 39 `sync; sudo sysctl vm.drop_caches=3` \
     gives back what an ended process left",
);

/// Control groups.
pub static CHECK_LIMIT: Check = Check {
    name: "memory-limit",
    about: "no control group of the daemon limits it below the model's weights",
    unless: Some("there is no limit"),
    problems: &[&TIGHT],
};
static TIGHT: Problem = failure(
    "one does: weights in the page cache are counted, and a CUDA context cannot be made",
    "`systemctl show skipd.service --property=MemoryMax --property=Slice` says whose it is; `sudo systemctl set-property skipd.service MemoryMax=infinity` lifts the service's own; a container gets a larger one (--memory)",
);

/// Swap.
pub static CHECK_SWAP: Check = Check {
    name: "swap",
    about: "a Jetson has no swap: memory that the GPU shares must not be swapped, and compressed memory is memory",
    unless: None,
    problems: &[&SWAPS],
};
static SWAPS: Problem = warning(
    "it has: when memory ends, the machine stands still instead of refusing",
    "`sudo systemctl disable --now nvzramconfig`, `sudo swapoff -a`, and no swap in /etc/fstab",
);

/// Looks at memory and the model.
pub fn memory(machine: &Machine) -> Finding {
    let memory = skip_platform::memory(machine.files());
    if let Some(counted) = machine.status().and_then(|status| status.memory.as_ref()) {
        return CHECK_MEMORY.ok(format!(
            "{} counted, {} were free {}",
            shown(counted.total.div_ceil(1 << 20) << 20),
            shown(counted.free_before),
            counted.source
        ));
    }
    if !machine.is_board() && machine.identity.driver != Driver::None && machine.config.backend.as_deref() != Some("cpu") {
        return CHECK_MEMORY.inapplicable("the GPU has memory of its own: the daemon counts when it loads");
    }
    let Some(weights) = weights(machine) else { return CHECK_MEMORY.inapplicable("no model is known, or it cannot be read") };
    let (Some(total), Some(available)) = (memory.total, memory.available) else {
        return CHECK_MEMORY.inapplicable("/proc/meminfo says nothing");
    };
    let wanted = weights.saturating_add(BESIDE);
    let seen = format!("{} of weights; {} available of {}", shown(weights), shown(available), shown(total));
    if wanted > total {
        CHECK_MEMORY.problem(&TOO_SMALL, seen)
    } else if wanted > available {
        CHECK_MEMORY.problem(&LITTLE, seen)
    } else {
        CHECK_MEMORY.ok(seen)
    }
}

/// Looks at control groups.
pub fn limit(machine: &Machine) -> Finding {
    let own = machine.files().read("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A private run starts where its caller is.
    let group = if machine.installed { GROUP } else { own };
    match tightest(machine.files(), group) {
        None => CHECK_LIMIT.inapplicable("no limit"),
        Some((limit, group)) => {
            let seen = format!("{} by {group}", shown(limit));
            match weights(machine) {
                Some(weights) if weights.saturating_add(BESIDE) > limit => {
                    CHECK_LIMIT.problem(&TIGHT, format!("{seen}, with {} of weights", shown(weights)))
                }
                _ => CHECK_LIMIT.ok(seen),
            }
        }
    }
}

/// The least limit of a group and those above it.
fn tightest(files: &dyn Sysfs, group: &str) -> Option<(u64, String)> {
    let limit = |group: &Path| {
        let path = Path::new(GROUPS).join(group);
        let text = files.read(path.join("memory.max").to_str()?).ok()?;
        Some((text.trim().parse::<u64>().ok()?, path.display().to_string()))
    };
    Path::new(group).ancestors().filter_map(limit).min()
}

/// Looks at swap.
pub fn swap(machine: &Machine) -> Finding {
    let memory = skip_platform::memory(machine.files());
    match memory.swap_total.unwrap_or(0) {
        0 => CHECK_SWAP.ok("none"),
        total if machine.is_board() => {
            CHECK_SWAP.problem(&SWAPS, format!("{}{}", shown(total), if memory.zram { ", some of it compressed memory" } else { "" }))
        }
        total => CHECK_SWAP.ok(format!("{}; the service itself is never swapped", shown(total))),
    }
}

/// Bytes for people.
pub fn shown(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 10 << 30 => format!("{} MiB", bytes >> 20),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::machine::Answer;
    use crate::doctor::testing::{ORIN, THOR, Tree, X86};
    use skip_client::protocol::{MemoryStatus, Status};

    /// A machine of this much memory, in MiB, and a model with a gigabyte of weights that take no room on the disk.
    fn tree(total: u64, available: u64) -> Tree {
        let tree = Tree::empty();
        tree.set("/proc/meminfo", &format!("MemTotal: {} kB\nMemAvailable: {} kB\n", total << 10, available << 10));
        tree.set("/etc/skipd/skipd.toml", "model = \"/models/m\"\n");
        tree.set("/models/m/model.safetensors", "");
        std::fs::File::options().write(true).open(tree.path("/models/m/model.safetensors")).unwrap().set_len(1 << 30).unwrap();
        tree
    }

    #[test]
    fn weights_are_held_against_what_is_available_and_what_there_is() {
        let mut told = tree(100, 100).machine();
        let counted =
            MemoryStatus { total: 1 << 30, free_before: 2 << 30, source: "of the system's memory".into(), ..MemoryStatus::default() };
        told.answer = Answer::Status(Box::new(Status { memory: Some(counted), ..Status::default() }));
        let found = [
            memory(&tree(8000, 4000).machine()),
            memory(&tree(8000, 1200).machine()),
            memory(&tree(1400, 1300).machine()),
            memory(&told),
            memory(&Tree::of(X86).machine()),
            memory(&Tree::empty().machine()),
        ];
        assert_covers(&CHECK_MEMORY, &found);
        use State::{Failure, NotApplicable, Ok, Warning};
        assert_eq!(found[3].seen, "1024 MiB counted, 2048 MiB were free of the system's memory");
        assert_eq!(found.map(|finding| finding.state), [Ok, Warning, Failure, Ok, NotApplicable, NotApplicable]);
    }

    #[test]
    fn the_tightest_group_above_the_daemon_counts() {
        let of = |service: &str, slice: &str| {
            let tree = tree(8000, 8000);
            tree.install();
            tree.set("/sys/fs/cgroup/system.slice/skipd.service/memory.max", service);
            tree.set("/sys/fs/cgroup/system.slice/memory.max", slice);
            limit(&tree.machine())
        };
        let private = tree(8000, 8000);
        private.set("/proc/self/cgroup", "0::/user.slice/box\n");
        private.set("/sys/fs/cgroup/user.slice/box/memory.max", "1073741824\n");
        let found = [of("max\n", "max\n"), of("8589934592\n", "max\n"), of("8589934592\n", "1610612735\n"), limit(&private.machine())];
        assert_covers(&CHECK_LIMIT, &found);
        use State::{Failure, NotApplicable, Ok};
        assert!(found[2].seen.contains("1535 MiB by /sys/fs/cgroup/system.slice,"), "{}", found[2].seen);
        assert_eq!(found.map(|finding| finding.state), [NotApplicable, Ok, Failure, Failure]);
    }

    #[test]
    fn swap_matters_where_the_gpu_shares_the_memory() {
        let server = Tree::of(X86);
        server.set("/proc/meminfo", "SwapTotal: 2000000 kB\n");
        let found = [swap(&Tree::of(THOR).machine()), swap(&Tree::of(ORIN).machine()), swap(&server.machine())];
        assert_covers(&CHECK_SWAP, &found);
        assert_eq!(found[1].seen, "29.6 GiB, some of it compressed memory");
        assert_eq!(found[2].state, State::Ok);
    }
}

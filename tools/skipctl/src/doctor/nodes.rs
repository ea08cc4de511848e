//! Device nodes: those that the driver needs, and whether the daemon may open them.

use super::finding::{Check, Finding, Problem, warning};
use super::machine::{Machine, Node};
use skip_platform::{Driver, Sysfs};

/// Nodes of NVIDIA's driver.
const NVIDIA: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"];
/// Nodes of Orin's.
const NVGPU: [&str; 5] = ["/dev/nvmap", "/dev/nvgpu/igpu0/ctrl", "/dev/nvgpu/igpu0/as", "/dev/nvgpu/igpu0/channel", "/dev/nvgpu/igpu0/tsg"];
/// Nodes that are opened where they are there.
const FURTHER: [&str; 3] = ["/dev/nvmap", "/dev/host1x-fence", "/dev/nvidia-modeset"];

/// Whether they are there.
pub static CHECK_NODES: Check = Check {
    name: "device-nodes",
    about: "the nodes that CUDA opens are there: /dev/nvidiactl, nvidia0 and nvidia-uvm, on Orin /dev/nvmap and /dev/nvgpu/igpu0",
    unless: Some("no driver is loaded"),
    problems: &[&ABSENT, &STALE],
};
static ABSENT: Problem = warning(
    "some are missing; the CPU serves",
    "`sudo modprobe nvidia-uvm && sudo nvidia-modprobe -c 0 -u` makes those of NVIDIA's driver, `sudo udevadm trigger` those of a Jetson, and then \
     `sudo systemctl restart skipd.service`: a class of devices that is missing when it starts stays closed to it",
);
static STALE: Problem = warning(
    "a node's number is not the driver's; the CPU serves",
    "`sudo rm {node} && sudo nvidia-modprobe -c 0 -u`, then `sudo systemctl restart skipd.service`",
);

/// Whether they may be opened.
pub static CHECK_ACCESS: Check = Check {
    name: "device-permissions",
    about: "the daemon's user may read and write the GPU's nodes",
    unless: Some("there are no nodes"),
    problems: &[&DENIED],
};
static DENIED: Problem = warning(
    "it may not open some; the CPU serves",
    "`sudo usermod -aG {groups} {user}` and a restart of the daemon; where a node belongs to no such group: `sudo udevadm control --reload && sudo udevadm \
     trigger`, with the package's rules in /usr/lib/udev/rules.d/60-skipd.rules",
);

/// What the driver needs.
fn needed(machine: &Machine) -> &'static [&'static str] {
    match machine.identity.driver {
        Driver::OpenRm { .. } | Driver::Proprietary { .. } => &NVIDIA,
        Driver::Nvgpu => &NVGPU,
        _ => &[],
    }
}

/// Looks for the nodes.
pub fn nodes(machine: &Machine) -> Finding {
    let needed = needed(machine);
    if needed.is_empty() {
        return CHECK_NODES.inapplicable("no driver");
    }
    let missing: Vec<&str> = needed.iter().copied().filter(|path| !machine.files().exists(path)).collect();
    if !missing.is_empty() {
        return CHECK_NODES.problem(&ABSENT, format!("missing: {}", missing.join(", "))).raised(machine.wants_cuda());
    }
    let known = machine.files().read("/proc/devices").unwrap_or_default();
    let numbers = needed.iter().map(|path| (*path, machine.node(path).ok().and_then(|node| node.number)));
    match stale(numbers, &known) {
        Some((path, number)) => {
            let seen = format!("{path} has number {number}, which is no driver's");
            CHECK_NODES.problem(&STALE, seen).with("node", path).raised(machine.wants_cuda())
        }
        None => CHECK_NODES.ok(needed.join(", ")),
    }
}

/// The first node whose major number no class in /proc/devices has; that of nvidia-uvm changes from boot to boot.
fn stale<'a>(mut nodes: impl Iterator<Item = (&'a str, Option<u32>)>, known: &str) -> Option<(&'a str, u32)> {
    let characters = known.split("Block devices:").next().unwrap_or_default();
    let majors: Vec<u32> = characters.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    nodes.find_map(|(path, number)| Some((path, number.filter(|number| !majors.is_empty() && !majors.contains(number))?)))
}

/// Looks at their bits.
pub fn access(machine: &Machine) -> Finding {
    let render = machine.files().list("/dev/dri").unwrap_or_default().into_iter().filter(|name| name.starts_with("renderD"));
    let paths = needed(machine).iter().chain(&FURTHER).map(|path| (*path).to_owned()).chain(render.map(|name| format!("/dev/dri/{name}")));
    let nodes: Vec<(String, Node)> = paths.filter_map(|path| Some((path.clone(), machine.node(&path).ok()?))).collect();
    judge(machine, nodes)
}

fn judge(machine: &Machine, nodes: Vec<(String, Node)>) -> Finding {
    if needed(machine).is_empty() || nodes.is_empty() {
        return CHECK_ACCESS.inapplicable("no nodes of a GPU");
    }
    let user = &machine.daemon;
    let mut groups = Vec::new();
    let mut denied = Vec::new();
    for (path, node) in nodes.iter().filter(|(_, node)| !user.may(node, 6)) {
        denied.push(format!(
            "{path} ({:04o} {}:{})",
            node.mode & 0o7777,
            machine.people.name(node.uid),
            machine.people.group_name(node.gid)
        ));
        // Membership mends nothing where the group may not, and nobody should be put in root's.
        if node.gid != 0 && node.mode & 0o060 == 0o060 {
            groups.push(machine.people.group_name(node.gid));
        }
    }
    if denied.is_empty() {
        return CHECK_ACCESS.ok(format!("{} may open all {}", user.name, nodes.len()));
    }
    groups.sort();
    groups.dedup();
    let groups = if groups.is_empty() { "video,render".to_owned() } else { groups.join(",") };
    let seen = format!("{} may not open {}", user.name, denied.join(", "));
    CHECK_ACCESS.problem(&DENIED, seen).with("groups", &groups).with("user", &user.name).raised(machine.wants_cuda())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::testing::{ORIN, THOR, Tree};

    #[test]
    fn each_driver_s_nodes_are_looked_for() {
        let (whole, half, orin) = (Tree::of(THOR), Tree::of(THOR), Tree::of(ORIN));
        for path in NVIDIA {
            whole.set(path, "");
        }
        half.set("/dev/nvidiactl", "");
        half.set("/dev/nvidia0", "");
        for path in NVGPU {
            orin.set(path, "");
        }
        let mut found = vec![nodes(&whole.machine()), nodes(&half.machine()), nodes(&orin.machine()), nodes(&Tree::empty().machine())];
        assert_eq!(found[1].seen, "missing: /dev/nvidia-uvm");
        assert_eq!((found[0].state, found[2].state), (State::Ok, State::Ok));
        found.push(CHECK_NODES.problem(&STALE, "as below").with("node", "/dev/nvidia-uvm"));
        assert_covers(&CHECK_NODES, &found);
    }

    #[test]
    fn a_node_that_was_made_for_another_number_is_found() {
        let known = "Character devices:\n  1 mem\n195 nvidia\n507 nvidia-uvm\n\nBlock devices:\n259 blkext\n  0 x\n";
        let nodes = |uvm| [("/dev/nvidiactl", Some(195)), ("/dev/nvidia-uvm", uvm)].into_iter();
        assert_eq!(stale(nodes(Some(507)), known), None);
        assert_eq!(stale(nodes(Some(0)), known), Some(("/dev/nvidia-uvm", 0)));
        assert_eq!(stale(nodes(Some(259)), known), Some(("/dev/nvidia-uvm", 259)), "a class of block devices is another's");
        // Files of a tree have no number, and a kernel that lists nothing proves nothing.
        assert_eq!((stale(nodes(None), known), stale(nodes(Some(0)), "")), (None, None));
    }

    #[test]
    fn a_node_that_is_closed_to_the_daemon_s_user_is_named_with_the_group_that_would_open_it() {
        let tree = Tree::of(THOR);
        tree.install();
        let machine = tree.machine();
        let node = |mode, gid| Node { mode, uid: 0, gid, number: None };
        let of = |node| judge(&machine, vec![("/dev/nvmap".into(), node)]);
        let open = of(node(0o660, 44));
        let closed = of(node(0o660, 1000));
        let rootly = of(node(0o600, 0));
        assert_eq!((open.state, closed.state, rootly.state), (State::Ok, State::Warning, State::Warning));
        assert!(closed.seen.contains("skipd may not open /dev/nvmap (0660 root:ann)"), "{}", closed.seen);
        assert!(closed.remedy.as_ref().unwrap().contains("usermod -aG ann skipd"));
        assert!(rootly.remedy.as_ref().unwrap().contains("usermod -aG video,render skipd"));
        assert_covers(&CHECK_ACCESS, &[open, closed, rootly, access(&Tree::empty().machine()), access(&machine)]);
    }

    #[test]
    fn without_the_package_it_is_the_caller_who_must_be_let_in() {
        let tree = Tree::of(THOR);
        tree.set("/dev/nvmap", "");
        tree.mode("/dev/nvmap", 0o600);
        let machine = tree.machine();
        let found = access(&machine);
        // Whoever runs the tests owns the file; ann does not, unless she does.
        let owner = machine.node("/dev/nvmap").unwrap().uid;
        assert_eq!(found.state, if owner == 1000 { State::Ok } else { State::Warning });
        assert!(found.seen.starts_with("ann may"), "{}", found.seen);
    }
}

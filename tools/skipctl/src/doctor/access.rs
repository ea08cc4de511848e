//! Who may what: the groups, the caller's membership, the socket.

use super::finding::{Check, Finding, Problem, failure, warning};
use super::machine::{Answer, DAEMON, Machine};
use skip_platform::{Driver, Sysfs};
use std::path::Path;

/// The groups of device nodes.
pub static CHECK_GROUPS: Check = Check {
    name: "groups",
    about: "the daemon's user and the groups video and render are there, and the user is a member",
    unless: Some("the package is not installed, and there is no GPU"),
    problems: &[&NO_USER, &MISSING, &OUTSIDE],
};
static NO_USER: Problem = failure("the package is there and user skipd is not: the service ends with 217/USER", "`sudo systemd-sysusers`");
static MISSING: Problem =
    failure("one is missing: the service ends with 216/GROUP", "`sudo systemd-sysusers`, or `sudo groupadd --system {group}`");
static OUTSIDE: Problem =
    warning("the user is not a member", "`sudo usermod -aG {group} {user}`, then a new login or a restart of the daemon");

/// The caller's membership.
pub static CHECK_MEMBER: Check = Check {
    name: "membership",
    about: "the caller is root, the daemon's user, or in the group whose members may generate",
    unless: None,
    problems: &[&NO_GROUP, &STRANGER, &OLD_LOGIN],
};
static NO_GROUP: Problem =
    failure("there is no such group", "`sudo groupadd --system {group}`, or name another as `group` in /etc/skipd/skipd.toml");
static STRANGER: Problem =
    warning("the caller is none of these: status and health only", "`sudo usermod -aG {group} {user}`, then a new login");
static OLD_LOGIN: Problem = warning("the files make the caller a member, and this login is older", "log in again, or `newgrp {group}`");

/// The socket.
pub static CHECK_SOCKET: Check = Check {
    name: "socket",
    about: "the daemon's socket is there, somebody listens, and the caller may write to it",
    unless: Some("there is no socket, and the package is not installed"),
    problems: &[&NO_SOCKET, &CLOSED, &DEAD],
};
static NO_SOCKET: Problem =
    warning("there is none", "`sudo systemctl start skipd.socket`; name the socket of a private run with --socket or SKIPD_SOCKET");
static CLOSED: Problem = failure(
    "the caller may not write to it",
    "`sudo systemctl restart skipd.socket` gives it the mode 0666 of its unit; a private run's socket is its user's",
);
static DEAD: Problem = failure("nobody listens", "`sudo systemctl restart skipd.socket`, or start the private run again");

/// Looks at the groups of device nodes.
pub fn groups(machine: &Machine) -> Finding {
    if !machine.installed && machine.identity.driver == Driver::None {
        return CHECK_GROUPS.inapplicable("no package and no GPU");
    }
    let (people, user) = (&machine.people, &machine.daemon);
    if machine.installed && people.person(DAEMON).is_none() {
        return CHECK_GROUPS.problem(&NO_USER, format!("no user {DAEMON}"));
    }
    for group in ["video", "render"] {
        match people.group(group) {
            // Without the package nothing starts by the name of the group.
            None if machine.installed => return CHECK_GROUPS.problem(&MISSING, format!("no group {group}")).with("group", group),
            None => {}
            // The unit gives both to the daemon, but not to whoever else runs as its user.
            Some(gid) if user.uid != 0 && !(people.is_member(&user.name, gid) || !machine.installed && user.groups.contains(&gid)) => {
                let seen = format!("{} is not in {group}", user.name);
                return CHECK_GROUPS.problem(&OUTSIDE, seen).with("group", group).with("user", &user.name);
            }
            Some(_) => {}
        }
    }
    CHECK_GROUPS.ok(format!("{} is in those there are", user.name))
}

/// Looks at who the caller is.
pub fn member(machine: &Machine) -> Finding {
    let (caller, group) = (&machine.caller, machine.config.members());
    if caller.uid == 0 {
        return CHECK_MEMBER.ok("root");
    }
    if caller.uid == machine.daemon.uid {
        return CHECK_MEMBER.ok("the daemon runs as the caller");
    }
    let Some(gid) = machine.people.group(group) else {
        return CHECK_MEMBER.problem(&NO_GROUP, format!("no group {group}")).with("group", group);
    };
    if caller.groups.contains(&gid) {
        return CHECK_MEMBER.ok(format!("{} is in {group}", caller.name));
    }
    let problem = if machine.people.is_member(&caller.name, gid) { &OLD_LOGIN } else { &STRANGER };
    CHECK_MEMBER.problem(problem, format!("{} is not in {group}", caller.name)).with("group", group).with("user", &caller.name)
}

/// Looks at the socket, without connecting: that would start the daemon.
pub fn socket(machine: &Machine) -> Finding {
    let found = machine.places.sockets.iter().find_map(|path| Some((path, machine.node(path).ok()?)));
    let Some((path, node)) = found else {
        let tried: Vec<String> = machine.places.sockets.iter().map(|path| path.display().to_string()).collect();
        let seen = format!("none at {}", if tried.is_empty() { "any place".into() } else { tried.join(" or ") });
        return if machine.installed { CHECK_SOCKET.problem(&NO_SOCKET, seen) } else { CHECK_SOCKET.inapplicable(seen) };
    };
    let shown = format!("{} ({:04o})", path.display(), node.mode & 0o7777);
    if matches!(machine.answer, Answer::Status(_)) && machine.places.bus.is_none() {
        return CHECK_SOCKET.ok(format!("{shown}, answers"));
    }
    if !machine.caller.may(&node, 2) {
        return CHECK_SOCKET.problem(&CLOSED, format!("{shown} is closed to {}", machine.caller.name));
    }
    match listens(machine.files(), path) {
        Some(false) => CHECK_SOCKET.problem(&DEAD, format!("{shown}, and nobody listens")),
        _ => CHECK_SOCKET.ok(shown),
    }
}

/// Whether the kernel has a listening socket of this path; None where it does not tell.
fn listens(files: &dyn Sysfs, path: &Path) -> Option<bool> {
    /// `SO_ACCEPTCON` in the column of flags.
    const LISTENING: &str = "00010000";
    let (text, path) = (files.read("/proc/net/unix").ok()?, path.to_str()?);
    let of_path = |line: &&str| line.split_once(path).is_some_and(|(before, after)| before.ends_with(' ') && after.is_empty());
    Some(text.lines().filter(of_path).any(|line| line.split_whitespace().nth(3) == Some(LISTENING)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::people::Person;
    use crate::doctor::testing::{THOR, Tree, ann};

    #[test]
    fn the_daemon_s_user_belongs_to_the_groups_of_nodes() {
        let with = |groups: &str| {
            let tree = Tree::of(THOR);
            tree.install();
            tree.set("/etc/group", groups);
            groups_of(&tree)
        };
        fn groups_of(tree: &Tree) -> Finding {
            super::groups(&tree.machine())
        }
        let found = [
            with("video:x:44:skipd\nrender:x:109:skipd\nskipd:x:991:\n"),
            with("video:x:44:skipd\nrender:x:109:\nskipd:x:991:\n"),
            with("video:x:44:skipd\nskipd:x:991:\n"),
            groups_of(&Tree::empty()),
            nobody(),
        ];
        fn nobody() -> Finding {
            let tree = Tree::empty();
            tree.install();
            tree.set("/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
            groups_of(&tree)
        }
        assert_covers(&CHECK_GROUPS, &found);
        assert_eq!(found[1].remedy.as_deref(), Some("`sudo usermod -aG render skipd`, then a new login or a restart of the daemon"));
        assert_eq!(found[2].seen, "no group render");
        // A private run beside a GPU: it is the caller's groups that count, as the process has them.
        let tree = Tree::of(THOR);
        tree.set("/etc/group", "video:x:44:\n");
        assert_eq!(groups_of(&tree).state, State::Warning);
        assert_eq!(super::groups(&tree.seen_by(Person { groups: vec![1000, 44], ..ann() })).state, State::Ok);
    }

    #[test]
    fn membership_counts_as_the_login_has_it() {
        let tree = Tree::empty();
        tree.install();
        let stranger = member(&tree.machine());
        let root = member(&tree.seen_by(Person { name: "root".into(), uid: 0, groups: vec![0] }));
        let inside = member(&tree.seen_by(Person { groups: vec![1000, 991], ..ann() }));
        tree.set("/etc/group", "skipd:x:991:ann\n");
        let early = member(&tree.machine());
        tree.set("/etc/skipd/skipd.toml", "group = \"robots\"\n");
        let none = member(&tree.machine());
        assert_eq!(
            [&stranger, &root, &inside, &early, &none].map(|found| found.state),
            [State::Warning, State::Ok, State::Ok, State::Warning, State::Failure]
        );
        assert_eq!(early.remedy.as_deref(), Some("log in again, or `newgrp skipd`"));
        assert_eq!(none.seen, "no group robots");
        assert_eq!(member(&Tree::empty().machine()).seen, "the daemon runs as the caller");
        assert_covers(&CHECK_MEMBER, &[stranger, root, inside, early, none]);
    }

    #[test]
    fn a_socket_is_judged_without_connecting() {
        const PATH: &str = "/run/skipd/skipd.sock";
        let tree = Tree::empty();
        let look = |tree: &Tree| {
            let mut machine = tree.machine();
            machine.places.sockets = vec![PATH.into()];
            socket(&machine)
        };
        let nothing = look(&tree);
        tree.install();
        let absent = look(&tree);
        tree.set(PATH, "");
        tree.mode(PATH, 0o666);
        let untold = look(&tree);
        let kernel = |flags: &str, path: &str| {
            format!("Num RefCount Protocol Flags Type St Inode Path\n0000: 00000002 00000000 {flags} 0001 01 4711 {path}\n")
        };
        tree.set("/proc/net/unix", &kernel("00010000", PATH));
        let listening = look(&tree);
        tree.set("/proc/net/unix", &kernel("00010000", "/other/run/skipd/skipd.sock"));
        let dead = look(&tree);
        tree.mode(PATH, 0o000);
        let closed = look(&tree);
        assert_eq!(
            [&nothing, &absent, &untold, &listening, &dead, &closed].map(|found| found.state),
            [State::NotApplicable, State::Warning, State::Ok, State::Ok, State::Failure, State::Failure]
        );
        assert_covers(&CHECK_SOCKET, &[nothing, absent, untold, listening, dead, closed]);
    }
}

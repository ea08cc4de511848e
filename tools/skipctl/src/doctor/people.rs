//! Users and groups by the files of /etc, and what the bits of a file let them do.

use super::machine::Node;
use skip_platform::{Rooted, Sysfs};

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Person {
    /// By name, or by number where no file has it.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// The groups that the process has or would have.
    pub groups: Vec<u32>,
}

impl Person {
    /// Whether the bits of a file let this user do all of `wanted` (4 read, 2 write, 1 search).
    pub fn may(&self, node: &Node, wanted: u32) -> bool {
        if self.uid == 0 {
            return true;
        }
        let shift = if node.uid == self.uid {
            6
        } else if self.groups.contains(&node.gid) {
            3
        } else {
            0
        };
        node.mode >> shift & wanted == wanted
    }
}

/// /etc/passwd and /etc/group.
#[derive(Clone, Debug, Default)]
pub struct People {
    /// Name, uid, primary group.
    users: Vec<(String, u32, u32)>,
    /// Name, gid, members.
    groups: Vec<(String, u32, Vec<String>)>,
}

impl People {
    /// Those of a root.
    pub fn read(files: &Rooted) -> Self {
        let text = |path| files.read(path).unwrap_or_default();
        let (users, groups) = (text("/etc/passwd"), text("/etc/group"));
        let user = |line: &str| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let group = |line: &str| {
            let mut fields = line.split(':');
            let (name, gid) = (fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?);
            let members = fields.next().unwrap_or_default().split(',').filter(|name| !name.is_empty());
            Some((name, gid, members.map(|name| name.trim().to_owned()).collect()))
        };
        Self { users: users.lines().filter_map(user).collect(), groups: groups.lines().filter_map(group).collect() }
    }

    /// A user with the groups that the files give.
    pub fn person(&self, name: &str) -> Option<Person> {
        let (_, uid, primary) = self.users.iter().find(|(known, ..)| known == name)?;
        let others = self.groups.iter().filter(|(.., members)| members.iter().any(|member| member == name)).map(|(_, gid, _)| *gid);
        Some(Person { name: name.to_owned(), uid: *uid, groups: std::iter::once(*primary).chain(others).collect() })
    }

    /// A user's name.
    pub fn name(&self, uid: u32) -> String {
        self.users.iter().find(|(_, known, _)| *known == uid).map_or_else(|| uid.to_string(), |(name, ..)| name.clone())
    }

    /// A group's number.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(known, ..)| known == name).map(|(_, gid, _)| *gid)
    }

    /// A group's name.
    pub fn group_name(&self, gid: u32) -> String {
        self.groups.iter().find(|(_, known, _)| *known == gid).map_or_else(|| gid.to_string(), |(name, ..)| name.clone())
    }

    /// Whether the files make the user a member.
    pub fn is_member(&self, name: &str, gid: u32) -> bool {
        self.person(name).is_some_and(|person| person.groups.contains(&gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::Tree;

    fn node(mode: u32) -> Node {
        Node { mode, uid: 7, gid: 44, number: None }
    }

    #[test]
    fn the_first_of_owner_group_and_others_decides() {
        let person = |uid, groups: &[u32]| Person { name: "p".into(), uid, groups: groups.to_vec() };
        assert!(person(7, &[]).may(&node(0o600), 6) && !person(8, &[]).may(&node(0o600), 6));
        assert!(person(8, &[1, 44]).may(&node(0o660), 6) && !person(8, &[1]).may(&node(0o660), 6));
        assert!(person(8, &[]).may(&node(0o666), 6) && !person(8, &[]).may(&node(0o664), 6));
        // An owner whom the mode shuts out is out, whatever others may.
        assert!(!person(7, &[44]).may(&node(0o066), 6));
        assert!(person(0, &[]).may(&node(0), 6));
    }

    #[test]
    fn groups_come_from_both_files_and_broken_lines_are_passed_over() {
        let tree = Tree::empty();
        tree.set("/etc/passwd", "root:x:0:0::/root:/bin/sh\nskipd:x:990:991::/:/bin/false\nbroken:x\n");
        tree.set("/etc/group", "video:x:44:skipd,ann\nskipd:x:991:\nrender:x:twelve:skipd\n\n");
        let people = People::read(&tree.files());
        assert_eq!(people.person("skipd"), Some(Person { name: "skipd".into(), uid: 990, groups: vec![991, 44] }));
        assert_eq!((people.person("ann"), people.group("render"), people.name(5)), (None, None, "5".into()));
        assert!(people.is_member("skipd", 991) && !people.is_member("skipd", 1));
    }
}

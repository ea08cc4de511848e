//! Machines made of files, for the tests of the checks.

use super::machine::Machine;
use super::people::Person;
use skip_platform::Rooted;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Thor on L4T 39.
pub const THOR: &str = include_str!("../../../../platform/trees/thor-r39.txt");
/// Orin on L4T 36.
pub const ORIN: &str = include_str!("../../../../platform/trees/orin.txt");
/// A server with a GPU.
pub const X86: &str = include_str!("../../../../platform/trees/x86.txt");

/// A root.
pub struct Tree {
    root: TempDir,
}

impl Tree {
    /// With nothing in it.
    pub fn empty() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// With the files of a board.
    pub fn of(manifest: &str) -> Self {
        let tree = Self::empty();
        skip_platform::lay_tree(manifest, tree.root()).unwrap();
        // Whatever the mask of whoever runs the tests.
        assert!(std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(tree.root()).status().unwrap().success());
        tree
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn files(&self) -> Rooted {
        Rooted::new(self.root())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub fn set(&self, path: &str, text: &str) {
        let at = self.path(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, text).unwrap();
        // Whatever the mask of whoever runs the tests.
        self.mode(path, 0o644);
        let folders = Path::new(path.trim_start_matches('/')).ancestors().skip(1);
        folders.for_each(|folder| self.mode(folder.to_str().unwrap(), 0o755));
    }

    pub fn mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// As if the package were installed: its unit, its user 990 with group 991, and the groups of device nodes.
    pub fn install(&self) {
        self.set("/usr/lib/systemd/system/skipd.service", "[Service]\n");
        self.set(
            "/etc/passwd",
            "root:x:0:0::/root:/bin/sh\nskipd:x:990:991::/var/lib/skipd:/usr/sbin/nologin\nann:x:1000:1000::/home/ann:/bin/sh\n",
        );
        self.set("/etc/group", "root:x:0:\nvideo:x:44:skipd\nrender:x:109:skipd\nskipd:x:991:\nann:x:1000:\n");
    }

    /// The machine, seen by the user ann, who is in no group but her own.
    pub fn machine(&self) -> Machine {
        self.seen_by(ann())
    }

    pub fn seen_by(&self, caller: Person) -> Machine {
        Machine::at(self.root(), None, Some(caller))
    }
}

/// Nobody in particular; owns no file of any tree, unless the tests run as her.
pub fn ann() -> Person {
    Person { name: "ann".into(), uid: 1000, groups: vec![1000] }
}

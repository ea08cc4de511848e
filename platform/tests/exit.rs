//! The exit codes of `skipd-profile`, on trees.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

const GPC: &str = "sys/class/devfreq/gpu-gpc-0";

fn tree(manifest: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    skip_platform::lay_tree(manifest, root.path()).unwrap();
    root
}

fn thor() -> tempfile::TempDir {
    tree(include_str!("../trees/thor-r38.txt"))
}

fn run(root: &Path, args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_skipd-profile")).arg("--root").arg(root).args(args).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_pin_and_its_restore_are_0_and_show_follows() {
    let thor = thor();
    let gpc = || std::fs::read_to_string(thor.path().join(GPC).join("min_freq")).unwrap();
    assert!(run(thor.path(), &["show"]).1.contains("unpinned"));
    let (code, text) = run(thor.path(), &["apply", "thor-maxn"]);
    assert_eq!((code, gpc().as_str()), (0, "1575000000"), "{text}");
    let (code, text) = run(thor.path(), &["show", "--json"]);
    assert!(code == 0 && text.contains("\"profile\": \"thor-maxn\"") && text.contains("\"mode\": \"MAXN\""), "{text}");
    assert_eq!(run(thor.path(), &["restore", "--of", "generic"]), (0, "nothing is pinned\n".into()));
    assert_eq!(gpc(), "1575000000");
    assert_eq!(run(thor.path(), &["restore", "--of", "thor-maxn"]).0, 0);
    assert_eq!(gpc(), "315000000\n");
    assert_eq!(run(thor.path(), &["restore"]), (0, "nothing is pinned\n".into()));
}

#[test]
fn each_way_to_fail_has_a_code_of_its_own() {
    let part = thor();
    std::fs::write(part.path().join(GPC).join("min_freq"), "fast").unwrap();
    assert_eq!(run(part.path(), &["apply", "thor-maxn"]).0, 3);
    assert_eq!(run(thor().path(), &["apply", "thor-90w"]).0, 4);
    assert_eq!(run(tree(include_str!("../trees/nothing.txt")).path(), &["apply", "generic"]).0, 5);
    for name in ["none", "../x"] {
        assert_eq!(run(thor().path(), &["apply", name]).0, 6);
    }
    let rebooted = thor();
    run(rebooted.path(), &["apply", "thor-maxn"]);
    std::fs::write(rebooted.path().join("proc/sys/kernel/random/boot_id"), "later\n").unwrap();
    assert_eq!(run(rebooted.path(), &["restore"]).0, 7);
    std::fs::write(rebooted.path().join("run/skipd-profile/state.json"), "{").unwrap();
    assert_eq!(run(rebooted.path(), &["restore"]).0, 1);
    assert_eq!(run(rebooted.path(), &["pin"]).0, 2);
}

use super::apply::apply_on;
use super::restore::restore_on;
use super::*;
use crate::board::{Board, BoardKind};
use crate::profile::{Profile, Profiles};
use crate::state::{Snapshot, StateFile};
use crate::testing::{Tree, Trouble, Troubled};
use crate::watch::{ClockState, watch};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const GPC: &str = "/sys/class/devfreq/gpu-gpc-0";
const CPU: &str = "/sys/devices/system/cpu/cpufreq/policy0";

fn state(tree: &Tree) -> StateFile {
    StateFile::of_root(tree.root())
}

fn profile(tree: &Tree, name: &str) -> Profile {
    Profiles::new(&tree.files()).load(name).unwrap()
}

fn pin(tree: &Tree, name: &str) -> Result<Applied, PinError> {
    apply(&Board::at(tree.root()), &profile(tree, name), &state(tree))
}

fn outcome<'a>(applied: &'a Applied, path: &str) -> &'a Outcome {
    &applied.nodes.iter().find(|node| node.path == path).unwrap().outcome
}

#[test]
fn each_board_is_pinned_by_its_profile_and_restored_to_the_byte() {
    for (name, wanted, pinned) in [
        ("thor-r38", "thor-maxn", [(GPC, "min_freq", "1575000000"), ("/sys/class/devfreq/bwmgr", "min_freq", "4266000000")]),
        ("thor-r39", "thor-120w", [(GPC, "min_freq", "1575000000"), (CPU, "scaling_min_freq", "2601000")]),
        ("orin", "orin-maxn", [("/sys/kernel/debug/bpmp/debug/clk/emc", "rate", "3199000000"), (CPU, "scaling_min_freq", "2201600")]),
        ("x86", "generic", [(CPU, "scaling_governor", "performance"), (CPU, "scaling_min_freq", "3500000")]),
    ] {
        let tree = Tree::new(name);
        let before = tree.sys();
        let applied = pin(&tree, wanted).unwrap();
        assert!(applied.whole, "{name}: {applied:?}");
        for (folder, file, value) in pinned {
            assert_eq!(tree.get(&format!("{folder}/{file}")), value, "{name}");
        }
        assert!(restore_on(&tree.files(), &state(&tree), None).unwrap().failed.is_empty());
        assert!(tree.sys() == before, "{name}");
        assert_eq!(restore_on(&tree.files(), &state(&tree), None).unwrap(), Restored::default(), "a second time there is nothing to do");
    }
}

#[test]
fn a_profile_of_another_mode_or_board_writes_nothing() {
    let tree = Tree::new("thor-r39");
    let before = tree.sys();
    assert!(matches!(pin(&tree, "thor-maxn"), Err(PinError::Mode { wanted, found, .. }) if wanted == "MAXN" && found == "120W"));
    assert!(matches!(pin(&tree, "orin-maxn"), Err(PinError::Board { wanted: "orin", found: "thor", .. })));
    let bare = Tree::new("nothing");
    assert!(matches!(pin(&bare, "generic"), Err(PinError::Nothing { .. })));
    bare.remove("/proc/sys/kernel/random/boot_id");
    assert!(matches!(pin(&bare, "generic"), Err(PinError::NoBootId)));
    assert!(tree.sys() == before && !state(&tree).path().exists());
}

type Spoiled<'a> = (&'a str, &'a dyn Fn(&Tree), &'a dyn Fn(&Outcome) -> bool);

/// What is wrong with the minimum of the GPU, and the outcome of the pin; the rest is pinned all the same.
#[test]
fn nodes_that_are_absent_unreadable_or_lying_are_told_and_left_as_they_are() {
    let wrong: [Spoiled; 7] = [
        ("absent", &|tree| tree.remove(&format!("{GPC}/min_freq")), &|o| *o == Outcome::Absent),
        (
            "a folder",
            &|tree| {
                tree.remove(&format!("{GPC}/min_freq"));
                std::fs::create_dir(tree.path(&format!("{GPC}/min_freq"))).unwrap()
            },
            &refused,
        ),
        ("text", &|tree| tree.set(&format!("{GPC}/min_freq"), "fast\n"), &refused),
        ("empty", &|tree| tree.set(&format!("{GPC}/min_freq"), ""), &refused),
        ("bytes", &|tree| std::fs::write(tree.path(&format!("{GPC}/min_freq")), [0xff, 0xfe]).unwrap(), &refused),
        ("huge", &|tree| tree.set(&format!("{GPC}/min_freq"), &"1".repeat(1 << 20)), &refused),
        ("above the maximum", &|tree| tree.set(&format!("{GPC}/min_freq"), "9000000000\n"), &refused),
    ];
    fn refused(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Refused { .. })
    }
    for name in ["thor-r38", "thor-r39"] {
        for (what, spoil, expected) in &wrong {
            let tree = Tree::new(name);
            spoil(&tree);
            let before = tree.sys();
            let applied = pin(&tree, if name == "thor-r38" { "thor-maxn" } else { "thor-120w" }).unwrap();
            assert!(!applied.whole && expected(outcome(&applied, &format!("{GPC}/min_freq"))), "{what}: {applied:?}");
            assert_eq!(*outcome(&applied, "/sys/class/devfreq/gpu-nvd-0/min_freq"), Outcome::Pinned, "{what}");
            restore_on(&tree.files(), &state(&tree), None).unwrap();
            assert!(tree.sys() == before, "{name}: {what}");
        }
    }
}

#[test]
fn a_node_that_takes_a_value_and_keeps_another_is_refused_with_what_it_says() {
    let tree = Tree::new("thor-r38");
    let files = Troubled::new(tree.files(), Some((0, Trouble::Lie)));
    let applied = apply_on(&files, BoardKind::Thor, Ok("MAXN".into()), &profile(&tree, "thor-maxn"), &state(&tree)).unwrap();
    let Outcome::Refused { read_back, .. } = outcome(&applied, &format!("{GPC}/min_freq")) else { panic!("{applied:?}") };
    assert_eq!(read_back.as_deref(), Some("315000000"));
    assert!(matches!(outcome(&applied, &format!("{GPC}/max_freq")), Outcome::Refused { .. }));
    assert!(!watch(&tree.files(), &state(&tree)).refused.is_empty());
}

#[test]
fn frequencies_are_steps_that_the_node_has_and_limits_are_not_raised() {
    let tree = Tree::new("thor-r38");
    let own = |hz: &str| format!("about = \"own\"\n[[gpu]]\nnodes = [\"gpu-gpc-0\"]\ntarget = {hz}\n");
    for (wanted, step) in [("1000000000", "945000000"), ("9000000000", "1575000000")] {
        let profile = Profile::parse("own", &own(wanted)).unwrap();
        let applied = apply(&Board::at(tree.root()), &profile, &state(&tree)).unwrap();
        assert!(applied.whole && applied.nodes.iter().all(|node| node.wanted == step), "{applied:?}");
    }
    restore_on(&tree.files(), &state(&tree), None).unwrap();
    assert_eq!(tree.get(&format!("{GPC}/max_freq")), "1575000000\n");
    let slower = Profile::parse("own", &own("2000000")).unwrap();
    assert!(matches!(apply(&Board::at(tree.root()), &slower, &state(&tree)), Err(PinError::Nothing { .. })));
}

#[test]
fn a_snapshot_of_another_boot_is_refused_and_replaced() {
    let tree = Tree::new("thor-r38");
    pin(&tree, "thor-maxn").unwrap();
    let pinned = tree.sys();
    tree.set("/proc/sys/kernel/random/boot_id", "another\n");
    let error = restore_on(&tree.files(), &state(&tree), None).unwrap_err();
    assert!(matches!(error, PinError::OtherBoot { .. }) && error.to_string().contains("another"), "{error}");
    assert!(tree.sys() == pinned);
    assert_eq!(watch(&tree.files(), &state(&tree)).state, ClockState::Unpinned);
    pin(&tree, "thor-maxn").unwrap();
    assert_eq!(watch(&tree.files(), &state(&tree)).profile.as_deref(), Some("thor-maxn"));
}

#[test]
fn what_somebody_else_set_since_stays_but_minima_go_back() {
    let tree = Tree::new("thor-r38");
    pin(&tree, "thor-maxn").unwrap();
    tree.set(&format!("{GPC}/max_freq"), "945000000\n");
    tree.set(&format!("{GPC}/min_freq"), "945000000\n");
    let restored = restore_on(&tree.files(), &state(&tree), None).unwrap();
    assert!(restored.left.len() == 1 && restored.left[0].contains("max_freq"), "{restored:?}");
    assert_eq!((tree.get(&format!("{GPC}/min_freq")), tree.get(&format!("{GPC}/max_freq"))), ("315000000\n".into(), "945000000\n".into()));
}

#[test]
fn a_snapshot_that_names_other_files_is_not_restored() {
    let tree = Tree::new("thor-r38");
    pin(&tree, "thor-maxn").unwrap();
    tree.set("/etc/shadow", "root");
    let text = std::fs::read_to_string(state(&tree).path()).unwrap();
    for path in ["/etc/shadow", "/sys/class/devfreq/../../../etc/min_freq", "/sys/class/devfreq/x/governor", "/sys/class/devfreqx/min_freq"]
    {
        std::fs::write(state(&tree).path(), text.replacen(&format!("{GPC}/min_freq"), path, 1)).unwrap();
        assert!(matches!(restore_on(&tree.files(), &state(&tree), None), Err(PinError::State(_))), "{path}");
    }
    for broken in ["", "{", "{}", &"x".repeat(2 << 20)] {
        std::fs::write(state(&tree).path(), broken).unwrap();
        assert!(matches!(restore_on(&tree.files(), &state(&tree), None), Err(PinError::State(_))));
        assert_eq!(watch(&tree.files(), &state(&tree)).state, ClockState::Unpinned);
    }
}

/// Another frequency for each domain: minimum, maximum.
fn values() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((1u64..3_000_000_000, 0u64..3_000_000_000).prop_map(|(min, more)| (min, min + more)), 5)
}

fn tree_of(values: &[(u64, u64)], newline: bool) -> Tree {
    let tree = Tree::new("thor-r38");
    let domains = [GPC, "/sys/class/devfreq/gpu-nvd-0", "/sys/class/devfreq/bwmgr", CPU, "/sys/devices/system/cpu/cpufreq/policy1"];
    let end = if newline { "\n" } else { "" };
    for (domain, (min, max)) in domains.into_iter().zip(values) {
        let prefix = if domain.contains("cpufreq") { "scaling_" } else { "" };
        tree.set(&format!("{domain}/{prefix}min_freq"), &format!("{min}{end}"));
        tree.set(&format!("{domain}/{prefix}max_freq"), &format!("{max}{end}"));
    }
    tree
}

fn wanted(hz: Option<u64>) -> Profile {
    let step = hz.map_or("\"max\"".to_owned(), |hz| hz.to_string());
    let text = format!(
        "about = \"own\"\nemc = {step}\nfan = 200\n[[gpu]]\nnodes = [\"gpu-nvd-0\"]\ntarget = {step}\n[[gpu]]\nnodes = [\"gpu-gpc-0\"]\ntarget = \"max\"\n\
         [cpu]\ngovernor = \"performance\"\nmin = \"max\"\n"
    );
    Profile::parse("own", &text).unwrap()
}

fn apply_in_trouble(tree: &Tree, hz: Option<u64>, at: Option<(usize, Trouble)>) -> usize {
    let files = Troubled::new(tree.files(), at);
    // It dies, or refuses all; the tree tells the rest.
    let _ = catch_unwind(AssertUnwindSafe(|| apply_on(&files, BoardKind::Thor, Ok("MAXN".into()), &wanted(hz), &state(tree))));
    files.writes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn after_a_restore_the_tree_is_what_it_was_whatever_write_failed_or_never_came(
        values in values(), hz in proptest::option::of(1_000_000u64..3_000_000_000), newline: bool, at in 0usize..64
    ) {
        let writes = apply_in_trouble(&tree_of(&values, newline), hz, None);
        let at = at % (writes + 1);
        for trouble in [Trouble::Refuse, Trouble::Die, Trouble::Lie] {
            let tree = tree_of(&values, newline);
            let before = tree.sys();
            apply_in_trouble(&tree, hz, Some((at, trouble)));
            restore_on(&Troubled::new(tree.files(), None), &state(&tree), None).unwrap();
            prop_assert!(tree.sys() == before, "{trouble:?} at {at}");
        }
        // The same of the restore.
        for trouble in [Trouble::Refuse, Trouble::Die] {
            let tree = tree_of(&values, newline);
            let before = tree.sys();
            apply_in_trouble(&tree, hz, None);
            let files = Troubled::new(tree.files(), Some((at, trouble)));
            let _ = catch_unwind(AssertUnwindSafe(|| restore_on(&files, &state(&tree), None)));
            restore_on(&Troubled::new(tree.files(), None), &state(&tree), None).unwrap();
            prop_assert!(tree.sys() == before, "restoring, {trouble:?} at {at}");
        }
    }

    #[test]
    fn no_file_in_the_place_of_a_node_brings_it_down(text in "\\PC{0,60}", at in 0usize..64) {
        let tree = Tree::new("thor-r38");
        let nodes: Vec<_> = tree.sys().into_keys().collect();
        std::fs::write(&nodes[at % nodes.len()], &text).unwrap();
        let before = tree.sys();
        let _ = apply_on(&tree.files(), BoardKind::Thor, Ok("MAXN".into()), &wanted(None), &state(&tree));
        watch(&tree.files(), &state(&tree));
        restore_on(&tree.files(), &state(&tree), None).unwrap();
        prop_assert!(tree.sys() == before);
        let _ = serde_json::from_str::<Snapshot>(&text);
    }
}

#[test]
fn a_restore_for_one_profile_leaves_what_another_changed() {
    let tree = Tree::new("thor-r39");
    let before = tree.sys();
    pin(&tree, "thor-120w").unwrap();
    let pinned = tree.sys();
    assert_eq!(restore_on(&tree.files(), &state(&tree), Some("thor-maxn")).unwrap(), Restored::default());
    assert_eq!(tree.sys(), pinned);
    assert_eq!(restore_on(&tree.files(), &state(&tree), Some("thor-120w")).unwrap().profile.as_deref(), Some("thor-120w"));
    assert_eq!(tree.sys(), before);
}

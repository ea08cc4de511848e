//! Small updates to put into a store, and what tests look at in one.

use skip_tables::Digest;
use skip_updates::{Admitted, Disk, Entry, FORMAT, Manifest, SlotName, View};
use std::path::Path;

/// The installed checkpoint.
pub fn checkpoint() -> Digest {
    Digest::of(b"weights")
}

/// The tables of a version.
pub fn tables(version: u64) -> Vec<u8> {
    format!("{{\"skip_softmax_prefill_scale_table\": [[1024, {version}]]}}\n").into_bytes()
}

/// A verified update.
pub fn update(version: u64) -> Admitted {
    let entry = Entry { checkpoint: checkpoint(), name: "tiny".into(), file: "tiny.json".into(), sha256: Digest::of(&tables(version)) };
    let manifest = Manifest { format: FORMAT, version, created: 1_790_000_000 + version, note: String::new(), tables: vec![entry] };
    let metadata = |role: &str| format!("{{\"signed\": {{\"_type\": \"{role}\", \"version\": {version}}}}}").into_bytes();
    Admitted {
        manifest: serde_json::to_vec(&manifest).unwrap(),
        tables: tables(version),
        checkpoint: checkpoint(),
        metadata: ["timestamp", "snapshot", "targets"].map(metadata),
        root: metadata("root"),
    }
}

/// Its slot.
pub fn slot(version: u64) -> SlotName {
    SlotName::of(version, &update(version).manifest)
}

/// Every file and link with its contents, but trust, which an update that failed later may have brought forward; no empty folders, and no state that says
/// nothing.
pub fn tree(disk: &impl Disk) -> Vec<String> {
    let mut found = Vec::new();
    walk(disk, Path::new(""), &mut found);
    let nothing =
        "state.json: {\n  \"active\": null,\n  \"previous\": null,\n  \"trial\": null,\n  \"tries_left\": 0,\n  \"reason\": null,";
    found.retain(|line| !line.starts_with("trust/") && !line.starts_with(nothing));
    found
}

/// Two trees are one; what differs is shown in short.
pub fn assert_same(found: &[String], expected: &[String], what: &str) {
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).map(|line| line.chars().take(120).collect()).collect()
    };
    let (more, fewer) = (only(found, expected), only(expected, found));
    assert!(more.is_empty() && fewer.is_empty(), "{what}: there is {more:?}, and not {fewer:?}");
}

fn walk(disk: &impl Disk, folder: &Path, found: &mut Vec<String>) {
    for name in disk.list(folder).unwrap() {
        let path = folder.join(&name);
        if disk.is_dir(&path).unwrap() {
            walk(disk, &path, found);
        } else if let Ok(target) = disk.read_link(&path) {
            found.push(format!("{} -> {}", path.display(), target.display()));
        } else {
            let bytes = disk.read(&path, 1 << 20).unwrap();
            found.push(format!("{}: {}", path.display(), String::from_utf8_lossy(&bytes)));
        }
    }
}

/// What must hold whatever happened: slots are whole and are what their version had, and `current` leads to a whole one or is not there.
pub fn assert_whole(disk: &impl Disk, view: &View, what: &str) {
    for slot in [&view.active, &view.previous, &view.trial].into_iter().flatten() {
        assert_eq!(slot.tables, tables(slot.name.version()), "{what}");
    }
    assert_eq!(view.state.active, view.active.as_ref().map(|s| s.name.clone()), "{what}");
    assert_eq!(view.state.trial, view.trial.as_ref().map(|s| s.name.clone()), "{what}");
    if let Ok(target) = disk.read_link(Path::new("current")) {
        let version: u64 = target.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().parse().unwrap();
        let manifest = disk.read(&target.join("manifest.json"), 1 << 20);
        assert_eq!(manifest.ok(), Some(update(version).manifest), "{what}: current leads to {}", target.display());
        let store = Path::new("store").join(format!("{}.json", Digest::of(&tables(version))));
        assert_eq!(disk.read(&store, 1 << 20).ok(), Some(tables(version)), "{what}: the tables of current");
    }
}

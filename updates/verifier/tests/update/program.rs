//! The program: its answers, its exit codes, and that a refusal leaves the state folder as it was.

use crate::world::{Device, PUBLISHER, bundle, bundle_by, checkpoint, contents, lasting, tables, wait};
use skip_tables::Digest;
use skip_update::make::{Contents, Publisher, pack};
use skip_updates::{Check, Files, RealDisk, View};
use std::fs::{self, File};
use std::process::Command;

fn view(device: &Device) -> View {
    View::read(&RealDisk::new(device.store())).unwrap()
}

fn in_force(device: &Device) -> [Option<u64>; 3] {
    let view = view(device);
    assert_eq!(view.problems, Vec::<String>::new());
    [&view.active, &view.previous, &view.trial].map(|slot| slot.as_ref().map(|slot| slot.name.version()))
}

/// Applies and commits.
fn install(device: &Device, files: &Files) {
    let bundle = device.put("bundle.tar", files);
    let applied = device.apply(&bundle);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let slot = applied.json["slot"].as_str().unwrap();
    assert_eq!(device.run(&["begin"]).json["slot"], slot);
    assert_eq!(device.run(&["commit", slot]).code, Some(0));
}

#[test]
fn an_update_is_tried_committed_and_rolled_back() {
    let device = Device::new();
    install(&device, &lasting(1));
    install(&device, &lasting(2));
    assert_eq!(in_force(&device), [Some(2), Some(1), None]);
    assert_eq!(view(&device).active.unwrap().tables, tables(2));
    assert_eq!(fs::read_link(device.store().join("current")).unwrap().parent().unwrap().to_str(), Some("slots"));
    assert_eq!(device.run(&["rollback"]).code, Some(0));
    assert_eq!(in_force(&device), [Some(1), None, None]);
    assert_eq!(device.run(&["rollback"]).code, Some(0));
    assert_eq!(in_force(&device), [None, None, None]);
    let nothing = device.run(&["rollback"]);
    assert_eq!((nothing.check(), nothing.code), ("nothing_there", Some(i32::from(Check::NothingThere.exit_code()))));
    assert_eq!(device.apply(&device.put("again.tar", &lasting(2))).check(), "replay", "the floor outlasts the rollback");
}

#[test]
fn a_trial_that_never_comes_to_a_verdict_is_given_up_after_three_starts() {
    let device = Device::new();
    install(&device, &lasting(1));
    device.apply(&device.put("two.tar", &lasting(2)));
    for left in [2, 1, 0] {
        assert_eq!(device.run(&["begin"]).json["tries_left"], left);
    }
    let given_up = device.run(&["begin"]);
    assert!(given_up.json["given_up"].as_str().unwrap().contains("never came to a verdict"), "{given_up:?}");
    assert_eq!(in_force(&device), [Some(1), None, None]);
}

#[test]
fn a_folder_and_a_descriptor_are_taken_like_an_archive() {
    let device = Device::new();
    let folder = device.path("bundle");
    for (name, bytes) in lasting(1).iter() {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(device.apply(&folder).code, Some(0));
    let archive = device.put("bundle.tar", &lasting(2));
    let mut command = device.command();
    command.args(["apply", "--fd", "0", "--checkpoint-sha256", &checkpoint().to_string()]).stdin(File::open(archive).unwrap());
    assert!(command.status().unwrap().success());
    assert_eq!(in_force(&device), [None, None, Some(2)]);
}

#[test]
fn the_checkpoint_is_the_one_that_the_daemon_remembers() {
    let device = Device::new();
    let bundle = device.put("bundle.tar", &lasting(1));
    let apply = |device: &Device| device.run(&["apply", bundle.to_str().unwrap()]);
    assert_eq!(apply(&device).check(), "checkpoint");
    fs::create_dir(device.store()).unwrap();
    fs::write(device.store().join("checkpoint.sha256"), format!("{}\n/model\n", checkpoint())).unwrap();
    assert_eq!(apply(&device).code, Some(0));
}

/// Bundles that are wrong, each with the check that names it.
fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let stranger = wait(Publisher::new(crate::world::FAR)).unwrap();
    let name_of = |files: &Files, end: &str| files.iter().map(|(name, _)| name.to_owned()).find(|name| name.ends_with(end)).unwrap();
    let mut hash = lasting(5);
    let name = name_of(&hash, ".tiny.json");
    hash.files_mut().get_mut(&name).unwrap()[3] ^= 1;
    let mut mixed = lasting(5);
    let name = name_of(&mixed, ".targets.json");
    mixed.files_mut().insert(name, lasting(4).get("metadata/4.targets.json").unwrap().to_vec());
    let mut missing = lasting(5);
    missing.files_mut().remove("metadata/timestamp.json");
    let expired = wait(PUBLISHER.sign(&Contents { expires: crate::world::CREATED + 10, ..contents(5) })).unwrap();
    let ahead = wait(PUBLISHER.sign(&Contents { created: crate::world::FAR - 1, expires: crate::world::FAR, ..contents(5) })).unwrap();
    let mut other = Contents { expires: crate::world::FAR, ..contents(5) };
    other.tables[0].checkpoint = Digest::of(b"others");
    let other = wait(PUBLISHER.sign(&other)).unwrap();
    let signed = |bytes: &[u8]| {
        let mut contents = Contents { expires: crate::world::FAR, ..contents(5) };
        contents.tables[0].bytes = bytes.to_vec();
        pack(&wait(PUBLISHER.sign(&contents)).unwrap())
    };
    let whole = pack(&lasting(5));
    let mut out = whole.clone();
    // The first header's name leads out of the bundle, with a right sum.
    out[345..350].copy_from_slice(b"../..");
    let sum: u64 = out[..512].iter().enumerate().map(|(i, &b)| u64::from(if (148..156).contains(&i) { b' ' } else { b })).sum();
    out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    vec![
        ("archive", whole[..whole.len() / 2].to_vec()),
        ("archive", b"no archive at all".to_vec()),
        ("path", out),
        ("missing", pack(&missing)),
        ("signature", pack(&bundle_by(&stranger, 5))),
        ("mix_and_match", pack(&mixed)),
        ("hash", pack(&hash)),
        ("expired", pack(&expired)),
        ("clock", pack(&ahead)),
        ("replay", pack(&lasting(2))),
        ("checkpoint", pack(&other)),
        ("schema", signed(b"{\"skip_softmax_prefill_scale_table\": [[1, -1]]}")),
        ("table", signed(b"{}")),
    ]
}

#[test]
fn a_refused_update_names_its_check_and_leaves_nothing_behind() {
    let fresh = Device::new();
    let updated = Device::new();
    install(&updated, &lasting(2));
    install(&updated, &lasting(3));
    for (expected, bytes) in wrong() {
        for device in [&fresh, &updated] {
            // An update that was never above a floor cannot be a replay.
            if expected == "replay" && in_force(device) == [None; 3] {
                continue;
            }
            let bundle = device.path("wrong.tar");
            fs::write(&bundle, &bytes).unwrap();
            let before = device.tree();
            let refused = device.apply(&bundle);
            let code = Check::from_name(expected).map(|check| i32::from(check.exit_code()));
            assert_eq!((refused.check(), refused.code), (expected, code), "{refused:?}");
            assert!(refused.said.starts_with(&format!("skip-update: {expected}: ")), "{refused:?}");
            assert_eq!(device.tree(), before, "{expected}");
        }
    }
}

#[test]
fn an_expired_root_of_trust_file_that_is_not_there_is_named() {
    let device = Device::new();
    fs::remove_file(device.path("root.json")).unwrap();
    let bundle = device.put("bundle.tar", &bundle(1));
    let before = device.tree();
    assert_eq!(device.apply(&bundle).check(), "trust");
    assert_eq!(device.tree(), before);
}

#[test]
fn a_rotated_root_is_kept_and_counts_from_then_on() {
    let device = Device::new();
    let mut publisher = PUBLISHER.clone();
    wait(publisher.rotate(crate::world::FAR)).unwrap();
    let by = |publisher: &Publisher, version| wait(publisher.sign(&Contents { expires: crate::world::FAR, ..contents(version) })).unwrap();
    install(&device, &by(&publisher, 1));
    assert_eq!(device.apply(&device.put("old.tar", &lasting(2))).check(), "signature");
    // Also without the file that was shipped.
    fs::remove_file(device.path("root.json")).unwrap();
    install(&device, &by(&publisher, 2));
}

#[test]
fn while_another_process_has_the_store_an_update_waits_and_then_gives_up() {
    let device = Device::new();
    install(&device, &lasting(1));
    let held = RealDisk::new(device.store()).lock().unwrap();
    let busy = device.run(&["rollback", "--wait", "0"]);
    assert_eq!(busy.check(), "busy");
    drop(held);
    assert_eq!(device.run(&["rollback", "--wait", "0"]).code, Some(0));
}

/// Runs a script where file systems may be mounted; None where that is not allowed.
fn mounting(device: &Device, mount: &str, bundle: &str) -> Option<(i32, String)> {
    let script = format!("mount {mount} || exit 99; exec \"$0\" \"$@\"");
    let command = device.apply_command(&device.path(bundle));
    let mut arguments: Vec<_> = command.get_args().collect();
    arguments.insert(0, command.get_program());
    let output = Command::new("unshare").args(["-r", "-m", "sh", "-c", &script]).args(arguments).output().ok()?;
    let code = output.status.code()?;
    if code == 99 || (code == 1 && output.stdout.is_empty()) {
        eprintln!("not tried, as nothing may be mounted here: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Some((code, json["error"]["check"].as_str().unwrap_or_default().to_owned()))
}

#[test]
fn a_read_only_state_folder_and_a_full_one_are_named() {
    let device = Device::new();
    install(&device, &lasting(1));
    device.put("two.tar", &lasting(2));
    let (store, before) = (device.store(), device.tree());
    let read_only = format!("--bind {0} {0} && mount -o remount,bind,ro {0}", store.display());
    if let Some(found) = mounting(&device, &read_only, "two.tar") {
        assert_eq!(found, (i32::from(Check::ReadOnly.exit_code()), "read_only".into()));
        assert_eq!(device.tree(), before);
    }
    // A page or two: the store's folders fit, its files do not.
    let full = format!("-t tmpfs -o size=8k,nr_inodes=64 none {}", store.display());
    if let Some(found) = mounting(&device, &full, "two.tar") {
        assert_eq!(found, (i32::from(Check::NoSpace.exit_code()), "no_space".into()));
    }
}

//! Each way a bundle can be wrong, and the check that names it.

use crate::world::{CREATED, EXPIRES, FAR, PUBLISHER, bundle, bundle_by, checkpoint, contents, tables, wait};
use skip_tables::Digest;
use skip_update::clock::Clock;
use skip_update::make::{Publisher, pack};
use skip_update::verify::Verifier;
use skip_updates::{Admitted, Check, Files, Limits, Rejection, read_archive};

fn verifier() -> Verifier {
    let clock = Clock { now: CREATED + 86_400, passed: CREATED, relax: false };
    Verifier { root: PUBLISHER.root().to_vec(), known: [None, None], floor: 0, checkpoint: checkpoint(), clock }
}

fn verify(verifier: &Verifier, files: Files) -> Result<Admitted, Rejection> {
    wait(verifier.verify(files))
}

fn check(verifier: &Verifier, files: Files) -> Option<Check> {
    verify(verifier, files).err().map(|e| e.check)
}

/// The name of the one file that ends so.
fn name(files: &Files, end: &str) -> String {
    files.iter().map(|(name, _)| name).find(|name| name.ends_with(end)).unwrap().to_owned()
}

/// Puts a file of another bundle in.
fn take(files: &mut Files, from: &Files, end: &str) {
    let name = name(from, end);
    files.files_mut().insert(name.clone(), from.get(&name).unwrap().to_vec());
}

fn version_of(root: &[u8]) -> u64 {
    serde_json::from_slice::<serde_json::Value>(root).unwrap()["signed"]["version"].as_u64().unwrap()
}

#[test]
fn a_good_bundle_is_taken_and_brings_its_tables() {
    let admitted = verify(&verifier(), bundle(3)).unwrap();
    assert_eq!((admitted.tables, admitted.checkpoint), (tables(3), checkpoint()));
    assert_eq!(version_of(&admitted.root), 1);
}

#[test]
fn packing_and_reading_an_archive_gives_the_bundle() {
    let files = bundle(3);
    assert_eq!(read_archive(pack(&files).as_slice(), &Limits::default()).unwrap(), files);
}

#[test]
fn whatever_is_cut_zeroed_or_flipped_in_a_bundle_nothing_else_than_was_signed_is_taken() {
    let mut publisher = PUBLISHER.clone();
    wait(publisher.rotate(FAR)).unwrap();
    let files = bundle_by(&publisher, 3);
    let good = verify(&verifier(), files.clone()).unwrap();
    let mut refused = 0;
    for (name, bytes) in files.iter() {
        let damaged = |bytes: Vec<u8>| {
            let mut files = files.clone();
            files.files_mut().insert(name.to_owned(), bytes);
            files
        };
        let mut cases = vec![Vec::new(), bytes[..bytes.len() / 2].to_vec(), vec![0; bytes.len()], [bytes, b"x"].concat()];
        for at in (0..bytes.len()).step_by(bytes.len() / 24 + 1) {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            cases.push(flipped);
        }
        for case in cases {
            match verify(&verifier(), damaged(case)) {
                Err(error) => {
                    refused += 1;
                    assert!(!matches!(error.check, Check::Io | Check::NoSpace), "{name}: {error}");
                }
                // A digit of a signature in capitals is the same digit; the shipped root is not read from the bundle.
                Ok(admitted) => assert_eq!((&admitted.manifest, &admitted.tables), (&good.manifest, &good.tables), "{name}"),
            }
        }
    }
    assert!(refused > 150, "{refused}");
}

#[test]
fn a_file_that_is_not_there_is_missing() {
    for end in ["timestamp.json", ".snapshot.json", ".targets.json", ".manifest.json", ".tiny.json"] {
        let mut files = bundle(3);
        let name = name(&files, end);
        files.files_mut().remove(&name);
        assert_eq!(check(&verifier(), files), Some(Check::Missing), "{end}");
    }
}

#[test]
fn another_publishers_bundle_is_not_signed_here() {
    let stranger = wait(Publisher::new(FAR)).unwrap();
    assert_eq!(check(&verifier(), bundle_by(&stranger, 3)), Some(Check::Signature));
}

#[test]
fn changed_tables_and_changed_metadata_are_told_apart() {
    let mut files = bundle(3);
    let tables = name(&files, ".tiny.json");
    files.files_mut().get_mut(&tables).unwrap()[10] ^= 1;
    assert_eq!(check(&verifier(), files), Some(Check::Hash));
    let mut files = bundle(3);
    let timestamp = String::from_utf8(files.get("metadata/timestamp.json").unwrap().to_vec()).unwrap();
    files.files_mut().insert("metadata/timestamp.json".into(), timestamp.replace("\"version\": 3", "\"version\": 4").into_bytes());
    assert_eq!(check(&verifier(), files), Some(Check::Signature));
}

#[test]
fn a_version_that_is_not_above_the_floor_is_a_replay() {
    let at = |floor| Verifier { floor, ..verifier() };
    assert_eq!(check(&at(2), bundle(3)), None);
    assert_eq!(check(&at(3), bundle(3)), Some(Check::Replay));
    assert_eq!(check(&at(4), bundle(3)), Some(Check::Replay));
}

#[test]
fn metadata_older_than_what_was_committed_is_a_replay_even_if_the_floor_were_lost() {
    let [timestamp, snapshot, _] = verify(&verifier(), bundle(5)).unwrap().metadata;
    let knowing = Verifier { known: [Some(timestamp), Some(snapshot)], ..verifier() };
    assert_eq!(check(&knowing, bundle(4)), Some(Check::Replay));
    assert_eq!(check(&knowing, bundle(6)), None);
}

#[test]
fn committed_metadata_that_was_torn_does_not_stand_in_the_way() {
    let torn = Verifier { known: [Some(vec![0; 700]), Some(b"{\"signed\"".to_vec())], ..verifier() };
    assert_eq!(check(&torn, bundle(3)), None);
}

#[test]
fn parts_of_two_bundles_put_together_are_mix_and_match() {
    let (old, new) = (bundle(3), bundle(4));
    for end in [".snapshot.json", ".targets.json"] {
        let mut files = new.clone();
        let name = name(&new, end);
        files.files_mut().remove(&name);
        take(&mut files, &old, end);
        assert_eq!(check(&verifier(), files.clone()), Some(Check::MixAndMatch), "{end} under its own name");
        let bytes = old.get(&self::name(&old, end)).unwrap().to_vec();
        files.files_mut().insert(name, bytes);
        assert_eq!(check(&verifier(), files), Some(Check::MixAndMatch), "{end} under the other's name");
    }
    let mut files = new.clone();
    take(&mut files, &old, "timestamp.json");
    assert_eq!(check(&verifier(), files), Some(Check::MixAndMatch));
}

#[test]
fn a_manifest_of_one_version_signed_as_another_is_refused() {
    let manifest = bundle(3).get(&name(&bundle(3), ".manifest.json")).unwrap().to_vec();
    let files =
        wait(PUBLISHER.sign_targets(9, EXPIRES, vec![("manifest.json".into(), manifest), ("tiny.json".into(), tables(3))])).unwrap();
    assert_eq!(check(&verifier(), files), Some(Check::Schema));
}

#[test]
fn tables_that_the_manifest_names_and_nobody_signed_are_missing() {
    let manifest = bundle(3).get(&name(&bundle(3), ".manifest.json")).unwrap().to_vec();
    let files = wait(PUBLISHER.sign_targets(3, EXPIRES, vec![("manifest.json".into(), manifest)])).unwrap();
    assert_eq!(check(&verifier(), files), Some(Check::Missing));
}

#[test]
fn tables_other_than_the_manifest_names_are_refused_although_signed() {
    let manifest = bundle(3).get(&name(&bundle(3), ".manifest.json")).unwrap().to_vec();
    let files =
        wait(PUBLISHER.sign_targets(3, EXPIRES, vec![("manifest.json".into(), manifest), ("tiny.json".into(), tables(8))])).unwrap();
    assert_eq!(check(&verifier(), files), Some(Check::Hash));
}

#[test]
fn an_expired_bundle_is_refused() {
    let at = |now| Verifier { clock: Clock { now, ..verifier().clock }, ..verifier() };
    assert_eq!(check(&at(EXPIRES - 1), bundle(3)), None);
    assert_eq!(check(&at(EXPIRES), bundle(3)), Some(Check::Expired));
}

#[test]
fn a_clock_that_was_set_back_is_named_and_relaxing_it_does_not_revive_what_has_expired() {
    let back = |relax, passed| Verifier { clock: Clock { now: 0, passed, relax }, ..verifier() };
    assert_eq!(check(&back(false, CREATED), bundle(3)), Some(Check::Clock));
    assert_eq!(check(&back(true, CREATED), bundle(3)), None);
    assert_eq!(check(&back(true, EXPIRES), bundle(3)), Some(Check::Expired));
}

#[test]
fn a_bundle_for_another_checkpoint_is_refused_by_name() {
    let other = Verifier { checkpoint: Digest::of(b"others"), ..verifier() };
    let refused = verify(&other, bundle(3)).unwrap_err();
    assert_eq!(refused.check, Check::Checkpoint);
    assert!(refused.message.contains(&Digest::of(b"others").to_string()) && refused.message.contains("tiny"), "{refused}");
}

#[test]
fn signed_tables_that_are_no_tables_are_refused() {
    let mut wrong = contents(3);
    wrong.tables[0].bytes = b"{\"skip_softmax_prefill_scale_table\": [[2, 1], [1, 1]]}".to_vec();
    assert_eq!(check(&verifier(), wait(PUBLISHER.sign(&wrong)).unwrap()), Some(Check::Schema));
    wrong.tables[0].bytes = b"{}".to_vec();
    assert_eq!(check(&verifier(), wait(PUBLISHER.sign(&wrong)).unwrap()), Some(Check::Table));
}

#[test]
fn metadata_beyond_its_size_is_refused() {
    let mut files = bundle(3);
    let padded = [files.get("metadata/timestamp.json").unwrap(), &vec![b' '; 1 << 20]].concat();
    files.files_mut().insert("metadata/timestamp.json".into(), padded);
    assert_eq!(check(&verifier(), files), Some(Check::TooLarge));
}

#[test]
fn trust_is_handed_on_over_three_rotations_and_bundles_of_old_keys_are_refused_from_then_on() {
    let mut publisher = PUBLISHER.clone();
    let old = bundle_by(&publisher, 3);
    let mut bundles = Vec::new();
    for version in [4, 5, 6] {
        wait(publisher.rotate(FAR)).unwrap();
        bundles.push(bundle_by(&publisher, version));
    }
    // From the shipped root straight to the newest: the bundle has the whole chain.
    let newest = verify(&verifier(), bundles[2].clone()).unwrap();
    let rotated = Verifier { root: newest.root.clone(), ..verifier() };
    assert_eq!(check(&rotated, bundles[2].clone()), None);
    for earlier in [&old, &bundles[0], &bundles[1]] {
        assert_eq!(check(&rotated, earlier.clone()), Some(Check::Signature));
    }
    // Step by step as well.
    let mut root = PUBLISHER.root().to_vec();
    for bundle in &bundles {
        root = verify(&Verifier { root, ..verifier() }, bundle.clone()).unwrap().root;
    }
    assert_eq!((version_of(&root), version_of(&newest.root)), (4, 4));
}

#[test]
fn a_root_that_the_trusted_key_did_not_sign_is_refused() {
    let mut stranger = wait(Publisher::new(FAR)).unwrap();
    wait(stranger.rotate(FAR)).unwrap();
    // The stranger's second root, as if it followed ours.
    assert_eq!(check(&verifier(), bundle_by(&stranger, 3)), Some(Check::Signature));
}

#[test]
fn a_chain_of_roots_with_a_gap_leads_nowhere() {
    let mut publisher = PUBLISHER.clone();
    for _ in 0..2 {
        wait(publisher.rotate(FAR)).unwrap();
    }
    let mut files = bundle_by(&publisher, 3);
    files.files_mut().remove("metadata/2.root.json");
    assert_eq!(check(&verifier(), files), Some(Check::Signature));
}

#[test]
fn a_damaged_root_of_trust_is_named() {
    for root in [b"".to_vec(), b"{}".to_vec(), vec![0; 500]] {
        assert_eq!(check(&Verifier { root, ..verifier() }, bundle(3)), Some(Check::Trust));
    }
}

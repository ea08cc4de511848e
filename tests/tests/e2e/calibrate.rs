//! Calibration as its users do it: skipctl has the daemon measure its own checkpoint, the tables are there afterwards and do what they say.

use crate::{completion, prose, votes};
use serde_json::{Value, json};
use skip_tests::process::{checkpoint, eventually};
use skip_tests::{Daemon, Http, Options};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A checkpoint of our own: its config.json may be written, without tables, with a key that nobody knows.
pub fn own_checkpoint(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(checkpoint().unwrap()).unwrap().flatten() {
        if entry.file_name() != "config.json" {
            std::os::unix::fs::symlink(entry.path().canonicalize().unwrap(), model.join(entry.file_name())).unwrap();
        }
    }
    let text = std::fs::read_to_string(checkpoint().unwrap().join("config.json")).unwrap();
    let mut config: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.retain(|key, _| !key.starts_with("skip_softmax"));
    config.insert("a_key_of_somebody_else".into(), json!({"z": 1, "a": [2, 3]}));
    std::fs::write(model.join("config.json"), serde_json::to_string_pretty(&config).unwrap()).unwrap();
    model
}

/// The texts of [`skip_tests::corpus`], written once.
pub fn corpus() -> String {
    static FOLDER: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("texts");
        skip_tests::corpus::write(&folder).unwrap().canonicalize().unwrap().display().to_string()
    });
    FOLDER.clone()
}

pub fn start(options: Value) -> String {
    json!({"kind": "calibrate", "options": options}).to_string()
}

pub fn job(http: &Http, id: &str) -> Value {
    http.get(&format!("/skipd/v1/jobs/{id}")).unwrap().expect(200).unwrap()
}

#[test]
fn a_calibration_writes_a_ladder_that_holds_on_other_texts() {
    let folder = tempfile::tempdir().unwrap();
    let model = own_checkpoint(folder.path());
    let before = std::fs::read_to_string(model.join("config.json")).unwrap();
    let daemon = Daemon::start(Options { model: Some(model.clone()), ..Options::default() }).unwrap();
    let mut args = vec!["--json", "calibrate", "--phase", "both", "--max-seqlen", "1300", "--bin-min", "768", "--bin-step", "384"];
    args.extend([
        "--target-sparsity",
        "0.1,20%,99%",
        "--deploy",
        "20%",
        "--samples",
        "3",
        "--decode-tokens",
        "8",
        "--check",
        "2",
        "--corpus",
    ]);
    let corpus = corpus();
    args.push(&corpus);
    let found: Value = serde_json::from_str(&daemon.skipctl(&args).unwrap().ok().unwrap()).unwrap();

    for (phase, of) in [("prefill", &found["phases"][0]), ("decode", &found["phases"][1])] {
        assert_eq!((&of["phase"], &of["deployed"]), (&json!(phase), &json!("20%")), "{found:#}");
        let row = |tier: usize, bin: usize| &of["tiers"][tier]["rows"][bin];
        let share = |bin: usize| row(1, bin)["share"].as_f64().unwrap();
        assert!(((share(0) + share(1)) / 2.0 - 0.2).abs() < 0.02, "together they skip what was asked: {of:#}");
        for (bin, first) in [768, 1152].into_iter().enumerate() {
            let s = |tier: usize| row(tier, bin)["s"].as_f64().unwrap();
            assert_eq!(row(0, bin)["first_length"], first);
            assert!(0.0 < s(0) && s(0) < s(1) && s(1) < f64::from(first), "{of:#}");
            // The texts of the bin beside count too, and draw a row from what its own would say.
            assert!((share(bin) - 0.2).abs() < 0.06, "{of:#}");
            assert!(
                row(2, bin)["s"].is_null() && row(2, bin)["share"].as_f64().unwrap() < 0.99,
                "no threshold below 1 skips so much: {of:#}"
            );
        }
        assert!(["on", "off"].contains(&of["advice"]["advice"].as_str().unwrap()));
    }
    // Few texts, and short ones.
    for bin in found["check"].as_array().unwrap() {
        assert_eq!((&bin["texts"], &bin["tier"]), (&json!(2), &json!("20%")));
        assert!((bin["share"].as_f64().unwrap() - 0.2).abs() < 0.1, "{:#}", found["check"]);
    }
    assert_eq!(found["check"].as_array().unwrap().len(), 4);

    let written = std::fs::read_to_string(model.join("config.json")).unwrap();
    assert!(written.starts_with(before.trim_end().trim_end_matches('}').trim_end()), "what was there stays, to the byte:\n{written}");
    assert_eq!(std::fs::read_to_string(model.join("config.json.bak")).unwrap(), before);
    let record = &serde_json::from_str::<Value>(&written).unwrap()["skip_softmax_decode_calibration"];
    assert_eq!(
        (&record["geometry"]["keys"], &record["reference"]["geometry"]["keys"], &record["max_length"]),
        (&json!(32), &json!(128), &json!(1300))
    );

    // Whoever comes later is shown the same.
    let shown = daemon.skipctl(&["job", "show", "1"]).unwrap().ok().unwrap();
    assert!(
        shown.starts_with("1  calibrate  done") && shown.contains("prefill: deployed 20%") && shown.contains("on other texts"),
        "{shown}"
    );

    // In force without a word more, and what a request measures.
    let http = daemon.http();
    let shown = http.get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap();
    assert_eq!((&shown["tier"], &shown["decided_by"]), (&json!("20%"), &json!("checkpoint")), "{shown:#}");
    let answer = http.post("/v1/completions", completion(&prose(1200), 2).to_string()).unwrap().expect(200).unwrap();
    let (voted, skipped) = votes(&answer, "prefill");
    assert!(0 < skipped && skipped < voted);
    http.put("/skipd/v1/tables/prefill", json!({"selector": "10%"}).to_string()).unwrap().expect(200).unwrap();
    let refused = http.put("/skipd/v1/tables/prefill", json!({"selector": "99%"}).to_string()).unwrap();
    assert_eq!(refused.status, 409, "an unreached tier is refused: {}", refused.body);
}

#[test]
fn a_cancelled_calibration_goes_on_after_a_restart_and_requests_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let model = own_checkpoint(folder.path());
    let options =
        json!({"max_seqlen": 1500, "bin_min": 384, "bin_step": 384, "samples": 2, "target_sparsity": [0.3], "corpus": [corpus()]});
    let kept = |folder: &Path| -> Vec<(PathBuf, std::time::SystemTime)> {
        let jobs = std::fs::read_dir(folder.join("state/calibrate")).into_iter().flatten().flatten();
        let files = jobs.flat_map(|job| std::fs::read_dir(job.path()).into_iter().flatten().flatten());
        let mut all: Vec<_> = files.map(|file| (file.path(), file.metadata().unwrap().modified().unwrap())).collect();
        all.retain(|(path, _)| path.extension().is_some_and(|e| e == "json"));
        all.sort();
        all
    };
    let own = Options { model: Some(model.clone()), folder: Some(folder.path().join("daemon")), ..Options::default() };
    std::fs::create_dir(folder.path().join("daemon")).unwrap();
    let daemon = Daemon::start(own.clone()).unwrap();
    let http = daemon.http();
    let id = http.post("/skipd/v1/jobs", start(options.clone())).unwrap().expect(200).unwrap()["id"].as_str().unwrap().to_owned();
    let second = http.post("/skipd/v1/jobs", start(options.clone())).unwrap();
    assert_eq!(second.status, 429, "{}", second.body);
    eventually(Duration::from_secs(120), "a length is measured", || Ok((!kept(daemon.folder()).is_empty()).then_some(()))).unwrap();
    // A request in the middle of it is answered before the job is done.
    http.post("/v1/completions", completion("One, two,", 4).to_string()).unwrap().expect(200).unwrap();
    let now = job(&http, &id);
    assert_eq!(now["state"], "running", "{now}");
    assert!(now["stage"].as_str().unwrap().starts_with("measuring"), "{now}");
    assert!((0.0..1.0).contains(&now["progress"].as_f64().unwrap()));
    http.post(&format!("/skipd/v1/jobs/{id}/cancel"), "").unwrap().expect(200).unwrap();
    eventually(Duration::from_secs(30), "it ends", || Ok((job(&http, &id)["state"] == "cancelled").then_some(()))).unwrap();
    let measured = kept(daemon.folder());
    assert!((1..3).contains(&measured.len()), "{measured:?}");
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    assert!(!text.contains("skip_softmax"), "nothing is written before all is measured");
    drop(daemon);

    let daemon = Daemon::start(own).unwrap();
    let http = daemon.http();
    let id = http.post("/skipd/v1/jobs", start(options)).unwrap().expect(200).unwrap()["id"].as_str().unwrap().to_owned();
    let done = eventually(Duration::from_secs(240), "it is done", || {
        let job = job(&http, &id);
        Ok((job["state"] != "running").then_some(job))
    })
    .unwrap();
    assert_eq!(done["state"], "done", "{done:#}");
    let all = kept(daemon.folder());
    assert_eq!(all.len(), 3);
    assert!(measured.iter().all(|file| all.contains(file)), "what was measured is not measured again");
}

#[test]
fn what_cannot_be_calibrated_is_refused_by_name() {
    let http = Daemon::shared().http();
    let refused = |options: Value, param: &str, word: &str| {
        let answer = http.post("/skipd/v1/jobs", start(options.clone())).unwrap();
        let error = serde_json::from_str::<Value>(&answer.body).unwrap()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{options}: {error}");
        assert!(error["message"].as_str().unwrap().contains(word), "{options}: {error}");
    };
    refused(json!({"max_seqlen": 100_000_000}), "max_seqlen", "context");
    refused(json!({"max_seqlen": 1000}), "max_seqlen", "below bin-min");
    refused(json!({"bin_min": 5}), "bin_min", "at least 128");
    refused(json!({"bin_step": 0}), "bin_step", "at least 128");
    refused(json!({"max_seqlen": u64::MAX}), "max_seqlen", "context");
    refused(json!({"bin_min": u64::MAX, "bin_step": u64::MAX, "max_seqlen": 1000}), "max_seqlen", "below bin-min");
    refused(json!({"cache_dir": ""}), "cache_dir", "no absolute path");
    refused(json!({"cache_dir": "cache"}), "cache_dir", "no absolute path");
    refused(json!({"corpus": ["docs"]}), "corpus", "no absolute path");
    refused(json!({"target_sparsity": [1.5]}), "target_sparsity", "1.5");
    refused(json!({"model_dir": "/somewhere"}), "model_dir", "not an option");

    // Texts are read by the job.
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let binary: Vec<u8> = (0..300_000).map(|_| noise()).collect();
    let random: Vec<u8> =
        (0..300_000).map(|_| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[usize::from(noise() % 64)]).collect();
    for (path, word) in [
        (folder.path().join("nothing").display().to_string(), "nothing"),
        (file("short.txt", b"A few words."), "bytes of text"),
        (file("binary.txt", &binary), "binary.txt"),
        (file("random.txt", &random), "random.txt"),
        // Reading these would never end.
        (pipe(folder.path()), "neither a regular file nor a folder"),
        ("/proc/kmsg".into(), "neither a regular file nor a folder"),
        ("/dev/zero".into(), "neither a regular file nor a folder"),
    ] {
        let options = json!({"max_seqlen": 1024, "bin_min": 512, "corpus": [path]});
        let id = http.post("/skipd/v1/jobs", start(options)).unwrap().expect(200).unwrap()["id"].as_str().unwrap().to_owned();
        let ended = eventually(Duration::from_secs(60), "the job ends", || {
            let job = job(&http, &id);
            Ok((job["state"] != "running").then_some(job))
        })
        .unwrap();
        assert_eq!(ended["state"], "failed", "{ended}");
        assert!(ended["error"].as_str().unwrap().contains(word), "{ended}");
        assert_eq!(ended["error_code"], "invalid_request", "{ended}");
    }
}

pub fn pipe(folder: &Path) -> String {
    let path = folder.join("pipe.jsonl");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    path.display().to_string()
}

/// A daemon whose model's folder is a small file system of its own, mounted by these options once the files are there. None where this user may
/// not mount.
fn on_small_disk(folder: &Path, then: &str) -> Option<Daemon> {
    if !std::process::Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not mount");
        return None;
    }
    let from = own_checkpoint(folder);
    let to = folder.join("small");
    std::fs::create_dir(&to).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=20k none '{to}' && cp -P '{from}'/* '{to}' && {then} && exec \"$@\"",
        to = to.display(),
        from = from.display()
    );
    let wrapper = ["unshare", "-m", "sh", "-c", &script.replace("@TO@", &to.display().to_string()), "sh"].map(str::to_owned).to_vec();
    Some(Daemon::start(Options { model: Some(to), wrapper, ..Options::default() }).unwrap())
}

pub fn ended(http: &Http, options: Value) -> Value {
    let id = http.post("/skipd/v1/jobs", start(options)).unwrap().expect(200).unwrap()["id"].as_str().unwrap().to_owned();
    eventually(Duration::from_secs(120), "the job ends", || {
        let job = job(http, &id);
        Ok((job["state"] != "running").then_some(job))
    })
    .unwrap()
}

pub fn small() -> Value {
    json!({"max_seqlen": 400, "bin_min": 384, "bin_step": 128, "samples": 2, "target_sparsity": [0.1], "corpus": [corpus()]})
}

#[test]
fn tables_of_a_checkpoint_that_cannot_be_written_go_into_the_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    let Some(daemon) = on_small_disk(folder.path(), "mount -o remount,ro '@TO@'") else { return };
    let http = daemon.http();
    let done = ended(&http, small());
    assert_eq!(done["state"], "done", "{done:#}");
    let written = done["result"]["written"].as_str().unwrap();
    assert!(Path::new(written).starts_with(daemon.folder().join("state/tables")), "{written}");
    let shown = http.get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap();
    assert_eq!((&shown["tier"], &shown["decided_by"]), (&json!("10%"), &json!("checkpoint")), "{shown:#}");
    assert!(shown["location"].as_str().unwrap().starts_with(written), "it says where: {shown:#}");
}

#[test]
fn a_full_disk_leaves_the_old_tables_and_a_daemon_that_serves() {
    let folder = tempfile::tempdir().unwrap();
    // What is left is less than a config.json.
    let Some(daemon) = on_small_disk(folder.path(), "{ dd if=/dev/zero of='@TO@/fill' bs=1024 count=64 2>/dev/null; true; }") else {
        return;
    };
    let http = daemon.http();
    let done = ended(&http, small());
    assert_eq!(done["state"], "failed", "{done:#}");
    let error = done["error"].as_str().unwrap();
    assert!(error.contains("config.json") && error.contains("No space left"), "{error}");
    let shown = http.get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap();
    assert_eq!(shown["tier"], Value::Null);
    http.post("/v1/completions", completion("One, two,", 2).to_string()).unwrap().expect(200).unwrap();
}

#[test]
fn weights_that_give_no_numbers_are_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let model = own_checkpoint(folder.path());
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let index: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let range = index["model.norm.weight"]["data_offsets"].as_array().unwrap();
    let at = |i: usize| 8 + header + range[i].as_u64().unwrap() as usize;
    // bfloat16's quiet NaN.
    bytes[at(0)..at(1)].chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&[0xc0, 0x7f]));
    std::fs::remove_file(&weights).unwrap();
    std::fs::write(&weights, bytes).unwrap();
    let daemon = Daemon::start(Options { model: Some(model.clone()), ..Options::default() }).unwrap();
    let done = ended(&daemon.http(), small());
    assert_eq!(done["state"], "failed", "{done:#}");
    assert!(done["error"].as_str().unwrap().contains("not numbers"), "{done:#}");
    assert!(!std::fs::read_to_string(model.join("config.json")).unwrap().contains("skip_softmax"));
    // Nothing of what was asked is wrong: another exit code than a refusal's.
    let mut args = vec!["calibrate", "--max-seqlen", "400", "--bin-min", "384", "--bin-step", "128", "--samples", "2", "--corpus"];
    let corpus = corpus();
    args.push(&corpus);
    let output = daemon.skipctl(&args).unwrap();
    assert_eq!((output.code, output.stderr.contains("not numbers")), (Some(9), true), "{output:?}");
}

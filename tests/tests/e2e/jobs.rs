//! Jobs on what they should not be given, told to end at the wrong moment, and followed by others than who started them.

use crate::calibrate::{corpus, ended, job, own_checkpoint, pipe, small, start};
use serde_json::{Value, json};
use skip_tests::process::eventually;
use skip_tests::{Daemon, Http, Options};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest from the word to the end: a second, and what a loaded machine adds.
const AT_ONCE: Duration = Duration::from_secs(3);

fn begin(http: &Http, kind: &str, options: Value) -> String {
    let body = json!({"kind": kind, "options": options}).to_string();
    http.post("/skipd/v1/jobs", body).unwrap().expect(200).unwrap()["id"].as_str().unwrap().to_owned()
}

/// Cancels a job as soon as it is at a stage; gives how long it went on.
fn cancelled_at(http: &Http, id: &str, stage: &str) -> Duration {
    eventually(Duration::from_secs(60), stage, || {
        let now = job(http, id);
        assert_eq!(now["state"], "running", "it is over before it is {stage}: {now}");
        Ok(now["stage"].as_str().unwrap().starts_with(stage).then_some(()))
    })
    .unwrap();
    http.post(&format!("/skipd/v1/jobs/{id}/cancel"), "").unwrap().expect(200).unwrap();
    let told = Instant::now();
    eventually(Duration::from_secs(60), "it ends", || Ok((job(http, id)["state"] != "running").then_some(()))).unwrap();
    let took = told.elapsed();
    let now = job(http, id);
    assert_eq!((&now["state"], &now["error_code"]), (&json!("cancelled"), &json!("cancelled")), "{now}");
    took
}

#[test]
fn a_job_that_prepares_ends_at_once_when_it_is_told_to() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    // Thousands of prompts to make before the first is asked.
    let many = json!({"samples": 5000, "max_context": 4000, "arm": ["dense"], "corpus": [corpus()]});
    let id = begin(&http, "evaluate", many);
    let took = cancelled_at(&http, &id, "reading texts and questions");
    assert!(took < AT_ONCE, "{took:?}");
    // And a folder of more files than are read in a second.
    let folder = tempfile::tempdir().unwrap();
    for i in 0..40 {
        let below = folder.path().join(i.to_string());
        std::fs::create_dir(&below).unwrap();
        (0..1000).for_each(|n| std::fs::write(below.join(format!("{n}.txt")), format!("{i} {n} ").repeat(500)).unwrap());
    }
    let id = begin(&http, "calibrate", json!({"max_seqlen": 1024, "bin_min": 512, "corpus": [folder.path()]}));
    let took = cancelled_at(&http, &id, "reading texts");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_checkpoint_of_sliding_windows_alone_is_refused_by_name_and_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let model = own_checkpoint(folder.path());
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    (config["model_type"], config["sliding_window"]) = (json!("mistral"), json!(256));
    std::fs::write(&path, config.to_string()).unwrap();
    let daemon = Daemon::start(Options { model: Some(model.clone()), ..Options::default() }).unwrap();
    let refused = daemon.http().post("/skipd/v1/jobs", start(small())).unwrap();
    let error = serde_json::from_str::<Value>(&refused.body).unwrap()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (400, &json!("unsupported_parameter")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("every layer of this checkpoint has a sliding window"), "{error}");
    assert!(!daemon.folder().join("state/calibrate").exists(), "nothing was begun");
    assert_eq!(daemon.http().get("/skipd/v1/jobs").unwrap().expect(200).unwrap()["jobs"], json!([]));
}

#[test]
fn bins_that_memory_does_not_hold_are_refused_before_anything_is_measured() {
    let daemon = Daemon::start(Options::default().flags(&["--kv-tokens", "1024"])).unwrap();
    let http = daemon.http();
    let refused = http.post("/skipd/v1/jobs", start(json!({"max_seqlen": 4096, "bin_min": 512}))).unwrap();
    let error = serde_json::from_str::<Value>(&refused.body).unwrap()["error"].clone();
    assert_eq!((refused.status, &error["param"]), (400, &json!("max_seqlen")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("--kv-tokens"), "it says what would help: {error}");
    // price, likewise, with an answer that leaves no room for a prompt.
    let body = json!({"kind": "price", "options": {"decode_tokens": 1020}}).to_string();
    let error = http.post("/skipd/v1/jobs", body).unwrap().expect(400).unwrap()["error"].clone();
    assert_eq!(error["param"], "decode_tokens", "{error}");
}

#[test]
fn a_kept_bin_of_another_shape_is_measured_again_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let model = own_checkpoint(folder.path());
    let daemon = Daemon::start(Options { model: Some(model), ..Options::default() }).unwrap();
    let http = daemon.http();
    let cache = folder.path().join("cache");
    let mut options = small();
    options["cache_dir"] = json!(cache);
    assert_eq!(ended(&http, options.clone())["state"], "done");
    let bin = kept(&cache);
    let whole: Value = serde_json::from_slice(&std::fs::read(&bin).unwrap()).unwrap();
    // One layer less, as of another model; a count that nobody counts.
    let mut fewer = whole.clone();
    fewer["prefill"]["tiers"][0]["prompts"][0].as_array_mut().unwrap().pop();
    let mut absurd = whole.clone();
    absurd["prefill"]["tiers"][0]["skipped"]["all_votes"] = json!(1e300);
    for spoilt in [fewer, absurd] {
        std::fs::write(&bin, spoilt.to_string()).unwrap();
        let done = ended(&http, options.clone());
        assert_eq!(done["state"], "done", "{done:#}");
        let notes = done["result"]["notes"].as_array().unwrap();
        assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains("measured again"), "{notes:?}");
        let again: Value = serde_json::from_slice(&std::fs::read(&bin).unwrap()).unwrap();
        // Sums of several threads differ in their last bits; votes are counted.
        let counted = |record: &Value| -> Vec<Value> {
            let layers = record["prefill"]["tiers"][0]["prompts"].as_array().unwrap().iter().flat_map(|prompt| prompt.as_array().unwrap());
            layers.map(|layer| layer["all_votes"].clone()).collect()
        };
        assert_eq!(counted(&again), counted(&whole));
    }
    assert!(ended(&http, options)["result"]["notes"].is_null(), "as it should be, it is taken");
}

/// The one bin that a job kept.
fn kept(cache: &Path) -> PathBuf {
    let jobs = std::fs::read_dir(cache).unwrap().flatten();
    let mut files = jobs.flat_map(|job| std::fs::read_dir(job.path()).unwrap().flatten()).map(|file| file.path());
    files.find(|path| path.extension().is_some_and(|e| e == "json")).unwrap()
}

#[test]
fn evaluate_reads_files_alone_and_knows_where_it_may_write_before_it_asks() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(folder.path());
    for (option, path) in [("tasks_file", pipe.as_str()), ("mmlu", "/proc/kmsg"), ("baseline", &pipe), ("qa_1", "/dev/zero")] {
        let mut options = json!({"samples": 1, "max_context": 600, "tasks": ["niah_single_1"], "arm": ["dense"], "corpus": [corpus()]});
        options[option] = json!(path);
        let id = begin(&http, "evaluate", options);
        let found = eventually(Duration::from_secs(60), "the job ends", || {
            let now = job(&http, &id);
            Ok((now["state"] != "running").then_some(now))
        })
        .unwrap();
        let error = found["error"].as_str().unwrap_or_default();
        assert!(error.contains(option) && error.contains("not a regular file"), "{found}");
    }
    let before = http.get("/skipd/v1/jobs").unwrap().expect(200).unwrap()["jobs"].as_array().unwrap().len();
    let output = daemon.skipctl(&["evaluate", "--samples", "1", "--save-results", "/proc/scores.json"]).unwrap();
    assert_eq!((output.code, output.stderr.contains("/proc/scores.json")), (Some(1), true), "{output:?}");
    assert_eq!(http.get("/skipd/v1/jobs").unwrap().expect(200).unwrap()["jobs"].as_array().unwrap().len(), before, "nothing was begun");
}

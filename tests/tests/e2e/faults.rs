//! A device that fails while serving: everybody is told, the process ends with a code of its own, and a supervisor's restarts end up on what
//! can be relied on. The fault is pretended (`--inject-fault-at-step`); the supervisor is this test.

use crate::{completion, ends};
use serde_json::{Value, json};
use skip_tests::{Daemon, Options};
use std::path::Path;
use std::time::Duration;

const TEXT: &str = "/v1/completions";

/// Options of a daemon whose state outlives it, and whose device fails at its 40th step.
fn options(folder: &Path, flags: &[&str]) -> Options {
    Options { folder: Some(folder.to_owned()), ..Options::default() }.flags(&["--inject-fault-at-step", "40"]).flags(flags)
}

fn streamed(prompt: &str, tokens: u32) -> String {
    json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}})
        .to_string()
}

/// The faults that a state folder remembers.
fn recorded(folder: &Path) -> Vec<Value> {
    let record: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("state/faults.json")).unwrap()).unwrap();
    record["faults"].as_array().unwrap().clone()
}

fn status(daemon: &Daemon) -> Value {
    daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap()
}

/// Sends requests until the device fails: a stream, one that waits for its answer, one in the queue. All must be told, once.
fn run_into_the_fault(daemon: &mut Daemon) {
    let http = daemon.http();
    let streams: Vec<_> = (0..3).map(|i| http.open(TEXT, &streamed(&format!("Story {i}: once"), 400)).unwrap()).collect();
    let waiting = std::thread::spawn({
        let http = http.clone();
        move || http.post(TEXT, completion("One, two,", 400).to_string()).unwrap()
    });
    for stream in streams {
        let events = stream.rest().unwrap();
        assert_eq!(ends(&events), ["device_fault"], "{events:?}\n{}", daemon.log());
    }
    let answer = waiting.join().unwrap().expect(500).unwrap();
    assert_eq!(answer["error"]["code"], "device_fault", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("pretended"), "{answer}");
    let ended = daemon.process().wait(Duration::from_secs(10)).unwrap();
    assert_eq!(ended.code(), Some(5), "{}", daemon.log());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn everybody_is_told_and_after_three_faults_the_daemon_serves_with_what_it_can_rely_on() {
    let folder = tempfile::tempdir().unwrap();
    for run in 1..=3 {
        let mut daemon = Daemon::start(options(folder.path(), &["--backend", "auto", "--max-running", "2"])).unwrap();
        let status = status(&daemon);
        assert_eq!(status["availability"]["state"], "available", "run {run}: {status}");
        run_into_the_fault(&mut daemon);
    }
    let mut daemon = Daemon::start(options(folder.path(), &["--backend", "auto"])).unwrap();
    let degraded = status(&daemon);
    assert_eq!((&degraded["state"], &degraded["backend"]["name"]), (&json!("ready"), &json!("cpu")), "{degraded}");
    assert_eq!(degraded["availability"]["state"], "degraded");
    let record = recorded(folder.path());
    assert!(record.iter().all(|fault| fault["with"] == "all") && record.len() == 3, "{record:?}");
    for reason in [&degraded["availability"]["reason"], &degraded["backend"]["reason"]] {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("3 device faults within 10 minutes") && reason.contains("pretended"), "{degraded}");
    }
    let shown = daemon.skipctl(&["status"]).unwrap().ok().unwrap();
    assert!(shown.contains("3 device faults"), "{shown}");
    // More steps than before the fault: this device does not fail.
    let answer = daemon.http().post(TEXT, completion("Once upon a time", 60).to_string()).unwrap().expect(200).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 60);
    daemon.process().signal("TERM").unwrap();
    assert_eq!(daemon.process().wait(Duration::from_secs(5)).unwrap().code(), Some(0));
    assert!(folder.path().join("state/faults.json").exists(), "a run that was cut short forgives nothing");
}

#[test]
fn faults_with_portable_kernels_too_leave_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("state")).unwrap();
    let fault = |ms: u64, with: &str| json!({"unix_ms": ms, "reason": "illegal address", "with": with});
    let faults: Vec<Value> = (0..6).map(|ms| fault(ms, if ms < 3 { "all" } else { "portable" })).collect();
    std::fs::write(folder.path().join("state/faults.json"), json!({"version": 1, "faults": faults}).to_string()).unwrap();
    let daemon = Daemon::start(options(folder.path(), &["--backend", "auto"])).unwrap();
    let status = status(&daemon);
    assert_eq!((&status["backend"]["name"], &status["availability"]["state"]), (&json!("cpu"), &json!("degraded")), "{status}");
    let reason = status["availability"]["reason"].as_str().unwrap();
    assert!(reason.contains("3 device faults within 10 minutes with portable kernels alone, the last: illegal address"), "{reason}");
    // Nothing is pretended on what is relied on, and nothing forgiven before a clean run.
    daemon.http().post(TEXT, completion("Once upon a time", 60).to_string()).unwrap().expect(200).unwrap();
    assert_eq!(recorded(folder.path()).len(), 6);
}

#[test]
fn a_backend_that_was_asked_for_is_used_whatever_happened() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir_all(&state).unwrap();
    let fault = |ms: u64| json!({"unix_ms": ms, "reason": "trap"});
    let faults = json!({"version": 1, "faults": [fault(1), fault(2), fault(3)]}).to_string();
    std::fs::write(state.join("faults.json"), &faults).unwrap();
    let daemon = Daemon::start(options(folder.path(), &["--backend", "cpu"])).unwrap();
    let status = status(&daemon);
    assert_eq!((&status["backend"]["name"], &status["availability"]["state"]), (&json!("cpu"), &json!("available")), "{status}");
    assert!(status["backend"]["reason"].as_str().unwrap().contains("as configured"));
    drop(daemon);
    let (code, log) = Daemon::refused(options(folder.path(), &["--backend", "cuda"]), "none").unwrap();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("--backend cuda: "), "{log}");
    assert_eq!(std::fs::read_to_string(state.join("faults.json")).unwrap(), faults, "no device, no fault");
}

#[test]
fn what_is_no_record_of_faults_is_said_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("state")).unwrap();
    std::fs::write(folder.path().join("state/faults.json"), "{\"version\": 1, \"faults\": [").unwrap();
    let daemon = Daemon::start(Options { folder: Some(folder.path().to_owned()), ..Options::default() }).unwrap();
    assert_eq!(status(&daemon)["availability"]["state"], "available");
    assert!(daemon.log().contains("not readable"), "{}", daemon.log());
}

#[test]
fn qualifying_without_a_device_fails_with_the_reason() {
    let daemon = Daemon::start(Options::default().flags(&["--backend", "cpu"])).unwrap();
    let output = daemon.skipctl(&["qualify"]).unwrap();
    // Where this machine has a usable GPU there is a verdict for each kernel.
    if output.code == Some(0) {
        assert!(output.stdout.contains("embed_"), "{output:?}");
        return;
    }
    assert_eq!(output.code, Some(4), "{output:?}");
    assert!(output.stderr.contains("CUDA") || output.stderr.contains("kernels"), "{output:?}");
    let jobs = daemon.http().get("/skipd/v1/jobs").unwrap().expect(200).unwrap();
    assert_eq!((&jobs["jobs"][0]["kind"], &jobs["jobs"][0]["state"]), (&json!("qualify"), &json!("failed")), "{jobs}");
    let id = jobs["jobs"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.http().get(&format!("/skipd/v1/jobs/{id}")).unwrap().expect(200).unwrap(), jobs["jobs"][0]);
    assert_eq!(daemon.http().get("/skipd/v1/jobs/99").unwrap().expect(404).unwrap()["error"]["code"], "not_found");
    for (body, code) in [
        (r#"{"kind": "bench"}"#, "unsupported_parameter"),
        (r#"{"kind": "dance"}"#, "invalid_request"),
        (r#"{"kind": "qualify", "options": {"fast": true}}"#, "invalid_request"),
        ("[", "invalid_request"),
    ] {
        assert_eq!(daemon.http().post("/skipd/v1/jobs", body).unwrap().expect(400).unwrap()["error"]["code"], code, "{body}");
    }
    let bus = format!("unix:{}", daemon.bus().address().trim_start_matches("unix:"));
    let over_bus = skip_tests::process::run(
        std::process::Command::new(skip_tests::process::binary("skipctl").unwrap()).args(["--bus", &bus, "qualify"]),
    );
    let over_bus = over_bus.unwrap();
    assert_eq!((over_bus.code, over_bus.stderr.contains("CUDA") || over_bus.stderr.contains("kernels")), (Some(4), true), "{over_bus:?}");
}

#[test]
fn the_process_that_tries_kernels_is_for_skipd_alone() {
    let program = skip_tests::process::binary("skipd").unwrap();
    let output = skip_tests::process::run(std::process::Command::new(program).arg("--qualify-child")).unwrap();
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.stderr.contains("started by skipd itself") && output.stdout.is_empty(), "{output:?}");
}

//! Starting, failing to start, and draining: bad checkpoints, a taken socket, no bus.

use crate::completion;
use serde_json::{Value, json};
use skip_tests::process::{checkpoint, eventually};
use skip_tests::{Daemon, Options};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

const TEXT: &str = "/v1/completions";

/// A copy of the checkpoint in `folder`, by links, to be spoilt.
pub fn copy(folder: &Path) {
    for file in fs::read_dir(checkpoint().unwrap()).unwrap() {
        let file = file.unwrap();
        symlink(file.path(), folder.join(file.file_name())).unwrap();
    }
}

/// Replaces a file of the copy.
fn replace(folder: &Path, name: &str, bytes: &[u8]) {
    fs::remove_file(folder.join(name)).unwrap();
    fs::write(folder.join(name), bytes).unwrap();
}

/// A start with this checkpoint must fail, quickly, with all of `words` in the log.
fn refused(folder: &Path, words: &[&str]) {
    let (code, log) = Daemon::refused(Options { model: Some(folder.to_owned()), ..Options::default() }, "none").unwrap();
    assert!(code.is_some_and(|c| c != 0 && c < 128), "exit {code:?}\n{log}");
    assert!(!log.contains("panicked"), "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} is not in\n{log}");
    }
}

#[test]
fn a_truncated_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let whole = fs::read(folder.path().join("model.safetensors")).unwrap();
    replace(folder.path(), "model.safetensors", &whole[..whole.len() / 2]);
    refused(folder.path(), &["model.safetensors"]);
    replace(folder.path(), "model.safetensors", &whole[..5]);
    refused(folder.path(), &["model.safetensors"]);
    let mut garbled = whole;
    garbled[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    replace(folder.path(), "model.safetensors", &garbled);
    refused(folder.path(), &["model.safetensors"]);
}

#[test]
fn a_checkpoint_whose_shapes_do_not_fit_is_refused() {
    let config: Value = serde_json::from_slice(&fs::read(checkpoint().unwrap().join("config.json")).unwrap()).unwrap();
    for (key, value, word) in [
        ("intermediate_size", json!(1535), "mlp"),
        ("num_hidden_layers", json!(31), "layers.30"),
        ("vocab_size", json!(49151), "embed"),
        ("num_key_value_heads", json!(2), "num_key_value_heads"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("hidden_size", json!("wide"), "hidden_size"),
        ("model_type", json!("mamba"), "mamba"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        copy(folder.path());
        let mut spoilt = config.clone();
        spoilt[key] = value;
        if key == "model_type" {
            spoilt["architectures"] = json!(["MambaForCausalLM"]);
        }
        replace(folder.path(), "config.json", spoilt.to_string().as_bytes());
        refused(folder.path(), &[word]);
    }
}

#[test]
fn a_missing_or_broken_file_is_named() {
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = tempfile::tempdir().unwrap();
        copy(folder.path());
        fs::remove_file(folder.path().join(name)).unwrap();
        refused(folder.path(), &[name]);
    }
    for name in ["config.json", "tokenizer.json"] {
        let folder = tempfile::tempdir().unwrap();
        copy(folder.path());
        replace(folder.path(), name, b"{\"");
        refused(folder.path(), &[name]);
    }
    refused(Path::new("/nonexistent"), &["/nonexistent"]);
}

#[test]
fn a_checkpoint_whose_table_is_bad_is_served_dense_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let mut config: Value = serde_json::from_slice(&fs::read(checkpoint().unwrap().join("config.json")).unwrap()).unwrap();
    config["skip_softmax_prefill_scale_table"] = json!([[2048, 5.0], [1024, 6.0]]);
    replace(folder.path(), "config.json", config.to_string().as_bytes());
    let daemon = Daemon::start(Options { model: Some(folder.path().to_owned()), ..Options::default() }).unwrap();
    let shown = daemon.http().get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap();
    assert_eq!(shown["rows"], Value::Null);
    assert!(shown["notices"].to_string().contains("skip_softmax_prefill_scale_table"), "{shown}");
    daemon.assert_alive().unwrap();
}

#[test]
fn a_taken_socket_is_left_to_its_owner() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let folder = daemon.folder().to_owned();
    let log_of_the_first = fs::read_to_string(folder.join("skipd.log")).unwrap_or_default();
    let (code, log) = Daemon::refused(Options { folder: Some(folder), ..Options::default() }, "none").unwrap();
    assert!(code.is_some_and(|c| c != 0), "{code:?}");
    assert!(log.contains("skipd.sock"), "{log}\n{log_of_the_first}");
    daemon.assert_alive().unwrap();
}

#[test]
fn a_stale_socket_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("skipd.sock")).unwrap());
    Daemon::start(Options { folder: Some(folder.path().to_owned()), ..Options::default() }).unwrap().assert_alive().unwrap();
}

#[test]
fn a_state_folder_is_one_daemon_s_until_that_is_gone() {
    let mut first = Daemon::start(Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    symlink(first.folder().join("state"), folder.path().join("state")).unwrap();
    let beside = || Options { folder: Some(folder.path().to_owned()), ..Options::default() };
    let (code, log) = Daemon::refused(beside(), "none").unwrap();
    assert!(code == Some(4) && log.contains(&format!("process {} uses the state folder", first.pid())), "{code:?} {log}");
    first.assert_alive().unwrap();
    first.process().signal("KILL").unwrap();
    first.process().wait(Duration::from_secs(5)).unwrap();
    Daemon::start(beside()).unwrap().assert_alive().unwrap();
}

#[test]
fn an_absent_bus_is_an_error_that_names_it() {
    let (code, log) = Daemon::refused(Options::default(), "unix:path=/nonexistent/bus").unwrap();
    assert!(code.is_some_and(|c| c != 0 && c < 128), "{code:?}");
    assert!(log.contains("/nonexistent/bus") && !log.contains("panicked"), "{log}");
}

#[test]
fn without_being_asked_for_the_system_bus_may_be_absent() {
    let environment = vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), "unix:path=/nonexistent/system".to_owned())];
    let daemon = Daemon::start(Options { bus: Some(String::new()), environment, ..Options::default() }).unwrap();
    assert!(daemon.log().contains("serving the socket alone"), "{}", daemon.log());
    daemon.assert_alive().unwrap();
}

#[test]
fn a_second_daemon_on_the_bus_is_refused_and_the_first_keeps_its_name() {
    let daemon = Daemon::shared();
    let (code, log) = Daemon::refused(Options::default(), &daemon.bus().address()).unwrap();
    assert_eq!(code, Some(4), "{log}");
    assert!(log.contains("org.skipd.Skipd1 is owned by another process"), "{log}");
    let state = ["get-property", "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Manager", "State"];
    assert_eq!(daemon.bus().busctl(&state).unwrap().ok().unwrap().trim(), r#"s "ready""#);
}

#[test]
fn weights_that_are_no_numbers_fail_each_request_and_not_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let mut file = fs::read(folder.path().join("model.safetensors")).unwrap();
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
    let norm = &header["model.norm.weight"];
    let at = 8 + header_len + norm["data_offsets"][0].as_u64().unwrap() as usize;
    // All ones in the exponent and more: NaN in bf16, fp16 and float32 alike.
    file[at..at + 4].fill(0xff);
    replace(folder.path(), "model.safetensors", &file);
    let daemon = Daemon::start(Options { model: Some(folder.path().to_owned()), ..Options::default() }).unwrap();
    let refused = daemon.http().post(TEXT, completion("Hello", 4).to_string()).unwrap().expect(500).unwrap();
    assert_eq!(refused["error"]["code"], "internal_error");
    assert!(refused["error"]["message"].as_str().unwrap().contains("not numbers"), "{refused}");
    let streamed = json!({"prompt": "Hello", "max_tokens": 4, "stream": true}).to_string();
    assert_eq!(crate::ends(&daemon.http().open(TEXT, &streamed).unwrap().rest().unwrap()), ["internal_error"]);
    let status = daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap();
    assert_eq!((&status["state"], &status["cache"]["free"]), (&json!("ready"), &status["cache"]["pages"]));
}

#[test]
fn the_bus_drains_too() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let manager = ["org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Manager"];
    let busctl = |verb: &str, args: &[&str]| daemon.bus().busctl(&[&[verb], &manager[..], args].concat()).unwrap();
    busctl("call", &["Drain"]).ok().unwrap();
    assert_eq!(busctl("get-property", &["State"]).ok().unwrap().trim(), r#"s "draining""#);
    let refused = busctl("call", &["Generate", "sa{sv}", "a", "0"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("draining"), "{refused:?}");
    assert_eq!(daemon.http().post(TEXT, completion("a", 1).to_string()).unwrap().expect(503).unwrap()["error"]["code"], "draining");
}

#[test]
fn a_bus_that_dies_leaves_the_socket_or_ends_the_daemon_cleanly() {
    let mut daemon = Daemon::start(Options::default()).unwrap();
    daemon.bus().kill().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    match daemon.process().ended().unwrap() {
        None => drop(daemon.assert_alive().unwrap()),
        Some(status) => assert!(status.code().is_some_and(|c| c < 128), "{status}\n{}", daemon.log()),
    }
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn a_bad_flag_is_refused_with_its_name() {
    for (flag, value) in [("--kv", "fp3"), ("--threads", "0"), ("--backend", "cuda"), ("--bus", "nowhere")] {
        let (code, log) = Daemon::refused(Options::default().flags(&[flag, value]), "none").unwrap();
        assert!(code.is_some_and(|c| c != 0 && c < 128) && log.contains(flag), "{flag} {value}: {code:?}\n{log}");
    }
}

#[test]
fn a_drained_daemon_finishes_what_runs_and_refuses_the_rest() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    let mut stream = http
        .open(
            TEXT,
            &json!({"prompt": "Hello", "max_tokens": 60, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}})
                .to_string(),
        )
        .unwrap();
    stream.event().unwrap().expect("a first piece");
    let drained = std::thread::spawn({
        let http = http.clone();
        move || http.post("/skipd/v1/drain", "").unwrap().status
    });
    eventually(Duration::from_secs(5), "it drains", || Ok((http.get("/ready")?.status == 503).then_some(()))).unwrap();
    let refused = http.post(TEXT, completion("a", 1).to_string()).unwrap().expect(503).unwrap();
    assert_eq!(refused["error"]["code"], "draining");
    let last = stream.rest().unwrap().pop().unwrap();
    assert_eq!(last["usage"]["completion_tokens"], 60, "what ran was finished");
    assert_eq!(drained.join().unwrap(), 200);
}

/// `tools/test startup` runs this alone with the real bound; beside other tests only a gross one makes sense.
#[test]
fn it_is_ready_soon_after_it_starts() {
    let bound = std::env::var("SKIP_READY_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(10_000);
    // The first start may have to read the checkpoint from disk.
    let best = (0..3).map(|_| Daemon::start(Options::default()).unwrap().ready_after()).min().unwrap();
    println!("speed: ready {} ms after the start of the process (best of 3; bound {bound} ms)", best.as_millis());
    assert!(best < Duration::from_millis(bound), "{best:?}");
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let full = ["sh", "-c", "exec \"$0\" \"$@\" 2>/dev/full"].map(str::to_owned).to_vec();
    let daemon = Daemon::start(Options { wrapper: full, ..Options::default() }.flags(&["--log", "debug"])).unwrap();
    let answer = daemon.http().post(TEXT, json!({"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": true}).to_string()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

//! Exit codes and messages, with no daemon and with one made of canned bytes.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn skipctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skipctl"));
    command.env_remove("SKIPD_SOCKET").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Answers every request on a socket with these bytes; the thread ends with the process.
fn daemon(socket: &Path, answer: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if request(&mut stream) {
                // The client may have gone.
                let _ = stream.write_all(answer.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        }
    });
}

/// Reads a request; false where the client only looked whether somebody listens.
fn request(stream: &mut UnixStream) -> bool {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).unwrap_or(0);
        if n == 0 {
            return false;
        }
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                return true;
            }
        }
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
data: {\"choices\":[{\"index\":0,\"text\":\"Paris\",\"finish_reason\":null}]}\n\n\
data: {\"choices\":[{\"index\":0,\"text\":\".\",\"finish_reason\":\"stop\"}]}\n\n\
data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n\
data: [DONE]\n\n";

#[test]
fn an_absent_daemon_exits_3_and_every_path_tried_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = skipctl().arg("status").env("XDG_RUNTIME_DIR", dir.path()).output().unwrap();
    assert_eq!(code(&output), Some(3));
    let user = dir.path().join("skipd.sock");
    for part in ["/run/skipd/skipd.sock", user.to_str().unwrap(), "SKIPD_SOCKET"] {
        assert!(err(&output).contains(part), "{}", err(&output));
    }
}

#[test]
fn an_absent_bus_exits_3() {
    let output = skipctl().args(["--bus", "unix:path=/nonexistent/bus", "status"]).output().unwrap();
    assert_eq!(code(&output), Some(3), "{}", err(&output));
    assert!(err(&output).contains("/nonexistent/bus"), "{}", err(&output));
}

#[test]
fn errors_are_json_where_asked_for() {
    let output = skipctl().args(["--json", "--socket", "/nonexistent/s", "status"]).output().unwrap();
    let body: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(body["error"]["code"], "unreachable");
}

#[test]
fn wrong_usage_exits_2() {
    for args in [
        &["no-such-command"][..],
        &["set-table", "middle", "50%"],
        &["--socket", "a", "--bus", "b", "status"],
        &["generate", "--logprobs", "1", "x"],
        &[],
    ] {
        assert_eq!(code(&skipctl().args(args).output().unwrap()), Some(2), "{args:?}");
    }
}

#[test]
fn a_missing_file_exits_1_and_is_named() {
    let output = skipctl().args(["generate", "--file", "/nonexistent/prompt.txt"]).output().unwrap();
    assert_eq!(code(&output), Some(1));
    assert!(err(&output).contains("/nonexistent/prompt.txt"));
}

#[test]
fn bad_utf8_in_a_prompt_exits_1_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    std::fs::write(&path, b"abc\xff").unwrap();
    let output = skipctl().args(["generate", "--file"]).arg(&path).output().unwrap();
    assert_eq!(code(&output), Some(1));
    assert!(err(&output).contains("byte 3"), "{}", err(&output));
}

#[test]
fn a_wrong_table_file_exits_5_and_the_row_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    for (text, part) in [("[[512, 1], [256, 2]]", "row 1"), ("[[512, NaN]]", "row 0"), ("{", "JSON")] {
        std::fs::write(&path, text).unwrap();
        let output = skipctl().args(["table", "check"]).arg(&path).output().unwrap();
        assert_eq!(code(&output), Some(5), "{text}");
        assert!(err(&output).contains(part), "{text}: {}", err(&output));
    }
}

#[test]
fn a_mistyped_key_exits_5_and_one_without_a_phase_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        skipctl().args(["table", "check"]).arg(&path).output().unwrap()
    };
    let output = check(r#"{"hidden_size": 8, "skip_softmax_prefill_scale_tabel": [[512, 1]]}"#);
    assert_eq!(code(&output), Some(5));
    assert!(err(&output).contains("skip_softmax_prefill_scale_tabel"), "{}", err(&output));
    let output = check(r#"{"hidden_size": 8, "skip_softmax_scale_table": [[512, 1]]}"#);
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("note: skip_softmax_scale_table is not read"), "{shown}");
}

#[test]
fn a_good_table_file_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    std::fs::write(&path, "[[256, 100], [910, 0]]").unwrap();
    let output = skipctl().args(["table", "check", "--json"]).arg(&path).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["tables"][0]["rows"], &report["tables"][0]["skips_from"]), (&2.into(), &256.into()));
}

#[test]
fn an_export_offline_deploys_the_tier_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "skip_softmax_prefill_scale_tables": {"50%": [[256, 3.5]]}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let out = dir.path().join("out.json");
    let output = skipctl()
        .args(["table", "export", "--offline", "--prefill-target-sparsity", "0.5", "-o"])
        .arg(&out)
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    let exported: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(exported["skip_softmax_prefill_scale_table"], serde_json::json!([[256, 3.5]]));
    assert_eq!(exported["skip_softmax_prefill_target_sparsity"], 0.5);
    assert_eq!(std::fs::read_to_string(dir.path().join("config.json")).unwrap(), config);
}

#[test]
fn an_answer_goes_to_stdout_and_its_usage_to_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    daemon(&socket, STREAM);
    let output = skipctl().arg("--socket").arg(&socket).args(["generate", "The capital of France is"]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Paris.\n");
    assert!(err(&output).contains("prefill 5 tokens"), "{}", err(&output));
}

#[test]
fn a_whole_answer_is_json_where_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    daemon(&socket, STREAM);
    let output = skipctl().arg("--socket").arg(&socket).args(["--json", "chat", "--logprobs", "2", "hi"]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", err(&output));
    let whole: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&whole["text"], &whole["finish_reason"], &whole["usage"]["total_tokens"]), (&"Paris.".into(), &"stop".into(), &7.into()));
}

#[test]
fn the_exit_code_follows_the_class_of_the_error() {
    for (answer, expected) in [
        (
            "HTTP/1.1 400 X\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"context_length_exceeded\"}}",
            4,
        ),
        ("HTTP/1.1 409 X\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"table_refused\"}}", 5),
        ("HTTP/1.1 403 X\r\nconnection: close\r\n\r\n", 6),
        ("HTTP/1.1 429 X\r\nconnection: close\r\n\r\n", 7),
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":\"deadline\"}]}\n\ndata: [DONE]\n\n",
            8,
        ),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n", 9),
        ("nonsense\r\n\r\n", 9),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        daemon(&socket, answer);
        let output = skipctl().arg("--socket").arg(&socket).args(["generate", "x"]).output().unwrap();
        assert_eq!(code(&output), Some(expected), "{answer}: {}", err(&output));
    }
}

/// A daemon that answers everything with this job.
fn daemon_of_job(socket: &Path, job: &str) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", job.len());
    daemon(socket, Box::leak((head + job).into_boxed_str()));
}

#[test]
fn the_exit_code_of_a_failed_job_follows_the_class_of_its_error() {
    for (state, error, exit) in [
        ("failed", "invalid_request", 4),
        ("failed", "unsupported_parameter", 4),
        ("failed", "busy", 7),
        ("failed", "shutdown", 8),
        ("failed", "internal_error", 9),
        ("failed", "device_fault", 9),
        ("cancelled", "cancelled", 8),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("skipd.sock");
        daemon_of_job(
            &socket,
            &format!(r#"{{"id":"1","kind":"calibrate","state":"{state}","error":"why it did","error_code":"{error}"}}"#),
        );
        let output = skipctl().arg("--socket").arg(&socket).args(["calibrate"]).output().unwrap();
        assert_eq!((code(&output), err(&output).contains("why it did")), (Some(exit), true), "{error}: {}", err(&output));
    }
}

#[test]
fn what_was_found_is_shown_though_its_file_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("skipd.sock");
    let arms = r#"[{"arm":"dense","scores":[{"id":"a","score":1.0},{"id":"b","score":0.5}]}]"#;
    daemon_of_job(
        &socket,
        &format!(r#"{{"id":"1","kind":"evaluate","state":"done","result":{{"verdict":null,"results":{{"arms":{arms}}}}}}}"#),
    );
    // It opens, and takes nothing.
    let output = skipctl().arg("--socket").arg(&socket).args(["evaluate", "--save-results", "/dev/full"]).output().unwrap();
    assert_eq!((code(&output), err(&output).contains("/dev/full")), (Some(1), true), "{}", err(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("0.750"), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    daemon(&socket, STREAM);
    // Gone before anything is written: a pipe would hold the whole answer for a reader that is merely late to leave.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = skipctl().arg("--socket").arg(&socket).args(["generate", "x"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((code(&output), err(&output).as_str()), (Some(0), ""));
}

#[test]
fn an_interrupt_cancels_the_request_and_exits_130() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let child = skipctl().arg("--socket").arg(&socket).args(["generate", "x"]).stderr(Stdio::piped()).spawn().unwrap();
    let (gone, told) = std::sync::mpsc::channel();
    let (asked, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if request(&mut stream) {
                asked.send(()).unwrap();
                let ended = matches!(stream.read(&mut [0]), Ok(0) | Err(_));
                gone.send(ended).unwrap();
                return;
            }
        }
    });
    seen.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(code(&child.wait_with_output().unwrap()), Some(130));
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true), "the daemon sees the client go");
}

#[test]
fn a_chat_without_a_word_asks_nothing() {
    for args in [&["chat"][..], &["chat", "-"], &["chat", "--system", "Be brief."]] {
        let output = skipctl().args(["--socket", "/nonexistent/skipd.sock"]).args(args).output().unwrap();
        assert_eq!((code(&output), output.stdout.len(), err(&output).as_str()), (Some(0), 0, ""), "{args:?}");
    }
}

#[test]
fn a_deadline_of_no_length_is_refused_as_the_daemon_refuses_it() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    daemon(&socket, STREAM);
    let output = skipctl().arg("--socket").arg(&socket).args(["generate", "--deadline", "0s", "x"]).output().unwrap();
    assert!(code(&output) == Some(4) && err(&output).contains("deadline_ms"), "{:?} {}", code(&output), err(&output));
}

#[test]
fn a_doctor_who_finds_no_failure_exits_0_and_one_who_does_12() {
    let root = tempfile::tempdir().unwrap();
    let doctor = |flags: &[&str]| skipctl().args(["doctor", "--root"]).arg(root.path()).args(flags).output().unwrap();
    let output = doctor(&["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((code(&output), &report["failures"]), (Some(0), &0.into()), "{report}");
    std::fs::create_dir_all(root.path().join("etc/skipd")).unwrap();
    std::fs::write(root.path().join("etc/skipd/skipd.toml"), "model = ").unwrap();
    let output = doctor(&[]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code(&output), Some(12), "{shown}");
    let mut lines = shown.lines();
    assert!(lines.next().unwrap().contains("failure") && lines.next().unwrap().starts_with("    → mend "), "{shown}");
    assert_eq!(err(&output), "skipctl: 1 failed; what mends it is below each\n");
}

#[test]
fn a_doctor_looks_at_this_machine_whatever_it_is_and_at_a_daemon_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("skipd.sock");
    daemon(
        &socket,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
        {\"version\":\"9\",\"state\":\"ready\",\"availability\":{\"state\":\"available\",\"reason\":\"\"},\"load_progress\":1,\"uptime_ms\":1}",
    );
    let output = skipctl().arg("--socket").arg(&socket).args(["--json", "doctor"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| report["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
    assert_eq!((&of("daemon")["state"], &of("socket")["state"]), (&"ok".into(), &"ok".into()), "{report}");
    let expected = if report["failures"] == 0 { 0 } else { 12 };
    assert_eq!(code(&output), Some(expected), "{report}");
}

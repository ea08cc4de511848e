//! TCP on loopback, by configuration and with a key: curl, the openai package and the llm command line.

use skip_tests::process::{Output, cache, root, run};
use skip_tests::{Daemon, Options};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

const KEY: &str = "a-key-for-a-test-0123";

fn key_file(folder: &Path, mode: u32) -> String {
    let path = folder.join("key");
    let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&path).unwrap();
    writeln!(file, "{KEY}").unwrap();
    path.display().to_string()
}

/// A daemon that listens on TCP too, and its port, which only its log tells.
fn over_tcp() -> (&'static Daemon, u16) {
    static SHARED: OnceLock<(Daemon, u16)> = OnceLock::new();
    let (daemon, port) = SHARED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let daemon =
            Daemon::start(Options::default().flags(&["--listen", "127.0.0.1:0", "--key-file", &key_file(folder.path(), 0o600)])).unwrap();
        let log = daemon.log();
        let port =
            log.split("address=127.0.0.1:").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or_else(|| panic!("{log}"));
        let port = port.parse().unwrap();
        (daemon, port)
    });
    (daemon, *port)
}

/// Status and body of a request by curl.
fn curl(path: &str, args: &[&str]) -> (u16, String) {
    let url = format!("http://127.0.0.1:{}{path}", over_tcp().1);
    let output: Output = run(Command::new("curl").args(["-sS", "--noproxy", "*", "-w", "\n%{http_code}"]).args(args).arg(url)).unwrap();
    let printed = output.ok().unwrap();
    let (body, status) = printed.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

fn authorization() -> String {
    format!("Authorization: Bearer {KEY}")
}

#[test]
fn curl_generates_with_the_key_and_controls_nothing() {
    let key = authorization();
    let body = r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24, "temperature": 0}"#;
    let (status, answer) = curl("/v1/chat/completions", &["-H", &key, "-d", body]);
    assert!(status == 200 && answer.contains("Paris"), "{status} {answer}");
    for (path, args) in [
        ("/skipd/v1/tables/prefill", ["-X", "PUT", "-d", r#"{"selector": "50%"}"#]),
        ("/skipd/v1/drain", ["-X", "POST", "-d", ""]),
        ("/skipd/v1/jobs", ["-X", "POST", "-d", r#"{"kind": "qualify"}"#]),
        ("/v1/completions", ["-X", "POST", "-d", r#"{"prompt": "a", "max_tokens": 1, "skipd": {"priority": "control"}}"#]),
    ] {
        let (status, answer) = curl(path, &[&["-H", &key], &args[..]].concat());
        assert!(status == 403 && answer.contains("access_denied"), "{path}: {status} {answer}");
    }
    over_tcp().0.assert_alive().unwrap();
}

#[test]
fn without_the_key_or_by_another_name_nothing_is_answered() {
    let right = authorization();
    for args in [&[][..], &["-H", "Authorization: Bearer a-key-for-a-test-0124"]] {
        let (status, answer) = curl("/v1/models", args);
        assert!(status == 401 && answer.contains("invalid_api_key"), "{status} {answer}");
    }
    // What a browser sends for a page whose name was pointed at this machine.
    let (status, answer) = curl("/v1/models", &["-H", &right, "-H", "Host: rebound.example"]);
    assert!(status == 403 && answer.contains("Host"), "{status} {answer}");
    let (status, _) = curl("/v1/models", &["-H", &right, "-H", "Host: localhost"]);
    assert_eq!(status, 200);
    assert!(!over_tcp().0.log().contains(KEY), "the key is in the log");
}

#[test]
fn the_openai_package_works_over_tcp_with_the_key() {
    let script = root().join("tests/tests/e2e/openai_tcp.py");
    let url = format!("http://127.0.0.1:{}/v1", over_tcp().1);
    let mut python = Command::new(cache().join("venv/bin/python"));
    let printed = run(python.env("NO_PROXY", "127.0.0.1").arg(script).args([&url, KEY])).unwrap().ok().unwrap();
    assert_eq!(printed.trim(), "all checks passed");
}

/// The `llm` command line, unmodified: a model of its own configuration file.
#[test]
fn the_llm_command_line_asks_streams_and_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let port = over_tcp().1;
    let model = format!("- model_id: skipd\n  model_name: default\n  api_base: http://127.0.0.1:{port}/v1\n  api_key_name: skipd\n");
    std::fs::write(folder.path().join("extra-openai-models.yaml"), model).unwrap();
    std::fs::write(folder.path().join("keys.json"), format!("{{\"skipd\": \"{KEY}\"}}")).unwrap();
    let llm = |args: &[&str]| {
        let question = ["-m", "skipd", "-o", "max_tokens", "24", "-o", "temperature", "0", "What is the capital of France?"];
        let mut command = Command::new(cache().join("venv/bin/llm"));
        run(command.env("LLM_USER_PATH", folder.path()).env("NO_PROXY", "127.0.0.1").args(args).args(question)).unwrap()
    };
    let streamed = llm(&[]).ok().unwrap();
    assert!(streamed.contains("Paris"), "{streamed}");
    assert_eq!(llm(&["--no-stream", "--no-log"]).ok().unwrap(), streamed);
    let refused = llm(&["--key", "a-key-for-a-test-0124"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("the key is wrong"), "{refused:?}");
}

#[test]
fn what_is_open_to_others_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let (good, open) = (key_file(folder.path(), 0o600), tempfile::tempdir().unwrap());
    let open = key_file(open.path(), 0o644);
    for (flags, said) in [
        (vec!["--listen", "0.0.0.0:8000", "--key-file", &good], "0.0.0.0:8000 is not a loopback address"),
        (vec!["--listen", "[::]:8000", "--key-file", &good], "is not a loopback address"),
        (vec!["--listen", "127.0.0.1:0"], "--key-file"),
        (vec!["--listen", "127.0.0.1:0", "--key-file", "/nonexistent/key"], "/nonexistent/key"),
        (vec!["--listen", "127.0.0.1:0", "--key-file", &open], "is open to everybody"),
    ] {
        let (code, log) = Daemon::refused(Options::default().flags(&flags), "none").unwrap();
        assert!(code == Some(2) && log.contains(said) && !log.contains(KEY), "{flags:?}: {code:?} {log}");
    }
    let taken = format!("127.0.0.1:{}", over_tcp().1);
    let (code, log) = Daemon::refused(Options::default().flags(&["--listen", &taken, "--key-file", &good]), "none").unwrap();
    assert!(code == Some(4) && log.contains(&format!("cannot listen on {taken}")), "{code:?} {log}");
}

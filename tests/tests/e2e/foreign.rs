//! Clients that are not ours: the openai Python package over the socket; and skipctl as a person uses it.

use skip_tests::Daemon;
use skip_tests::process::{binary, cache, root, run};
use std::process::Command;

#[test]
fn the_openai_python_package_works_unmodified() {
    let python = cache().join("venv/bin/python");
    assert!(python.exists(), "{} is missing: tools/setup test", python.display());
    let script = root().join("tests/tests/e2e/openai_client.py");
    let output = run(Command::new(python).arg(script).arg(Daemon::shared().socket())).unwrap();
    let printed = output.ok().unwrap();
    assert!(printed.trim_end().ends_with("all checks passed"), "{printed}");
}

#[test]
fn skipctl_shows_status_tables_and_tiers() {
    let daemon = Daemon::shared();
    let status: serde_json::Value = serde_json::from_str(&daemon.skipctl(&["status", "--json"]).unwrap().ok().unwrap()).unwrap();
    assert_eq!(status["state"], "ready");
    assert!(daemon.skipctl(&["status"]).unwrap().ok().unwrap().contains("ready"));
    let table = daemon.skipctl(&["table", "show"]).unwrap().ok().unwrap();
    assert!(table.contains("prefill") && table.contains("decode") && table.contains("dense"), "{table}");
    let tiers = daemon.skipctl(&["tiers"]).unwrap().ok().unwrap();
    assert!(tiers.contains("50%") && tiers.contains("85%"), "{tiers}");
}

#[test]
fn skipctl_generates_over_the_socket_and_over_the_bus() {
    let daemon = Daemon::shared();
    let args = ["generate", "--max-tokens", "8", "--temperature", "0", "The capital of France is"];
    let by_socket = daemon.skipctl(&args).unwrap().ok().unwrap();
    assert!(by_socket.contains("Paris"), "{by_socket}");
    let address = daemon.bus().address();
    let by_bus = run(Command::new(binary("skipctl").unwrap()).args(["--bus", &address]).args(args)).unwrap().ok().unwrap();
    assert_eq!(by_socket, by_bus);
}

#[test]
fn skipctl_exits_by_the_class_of_the_error() {
    let daemon = Daemon::shared();
    let code = |args: &[&str]| daemon.skipctl(args).unwrap().code;
    assert_eq!(code(&["set-table", "prefill", "99%"]), Some(5), "refused table");
    assert_eq!(code(&["generate", ""]), Some(4), "bad request");
    assert_eq!(code(&["confirm"]), Some(5), "nothing pending");
    assert_eq!(code(&["no-such-command"]), Some(2), "usage");
    let nobody = run(Command::new(binary("skipctl").unwrap()).args(["--socket", "/nonexistent/skipd.sock", "status"])).unwrap();
    assert_eq!(nobody.code, Some(3), "no daemon: {}", nobody.stderr);
}

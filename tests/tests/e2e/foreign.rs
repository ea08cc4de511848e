//! Clients that are not ours: the openai Python package over the socket; and skipctl as a person uses it.

use skip_tests::process::{binary, cache, root, run};
use skip_tests::{Daemon, Options};
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

#[test]
fn skipctl_bench_measures_dense_and_skipping_in_turn() {
    let daemon = Daemon::shared();
    let args =
        ["bench", "--prompts", "200,700", "-n", "3", "--rounds", "1", "--concurrency", "1,2", "--prefill-table", "[[256,150]]", "--json"];
    let report: serde_json::Value = serde_json::from_str(&daemon.skipctl(&args).unwrap().ok().unwrap()).unwrap();
    assert_eq!((&report["runtime"], &report["clock_state"]), (&"skipd".into(), &"unpinned".into()));
    assert_eq!(report["comparable"], false);
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning.as_str().unwrap().contains("NOT PINNED")), "{report}");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8, "two lengths, two widths, two modes");
    for run in runs {
        assert_eq!(run["requests"], run["concurrency"]);
        for field in ["ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "itl_ms_p50", "throughput_tok_s", "e2e_latency_ms_p50"] {
            assert!(run[field].as_f64().unwrap() > 0.0, "{field}: {run}");
        }
        let skips = run["mode"] == "skip" && run["input_len"] == 700;
        assert!(!skips || run["sparsity"]["prefill"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["mode"] == "skip" || run["sparsity"]["prefill"] == 0.0, "{run}");
    }
    let text = daemon.skipctl(&["bench", "--prompts", "200,999999", "-n", "4", "--rounds", "1"]).unwrap().ok().unwrap();
    assert!(text.contains("NOT PINNED") && text.contains("does not fit the context"), "{text}");
}

#[test]
fn the_load_test_finds_answers_under_load_to_be_those_alone() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let script = root().join("tools/load-test");
    let args = ["--clients", "4", "--requests", "3", "--cases", "3", "--longest", "1500", "--prefill", "none;[[128,100]]"];
    // A text that stays as it is: of so few cases, another one's may have no form that ends in time.
    let text = root().join("LICENSE");
    let output =
        Command::new("python3").arg(script).arg("--socket").arg(daemon.socket()).args(args).arg("--text").arg(text).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("finished"), "{text}");
}

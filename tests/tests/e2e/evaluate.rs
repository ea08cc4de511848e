//! Evaluate, price and report as their users run them, small.

use crate::calibrate::corpus;
use serde_json::{Value, json};
use skip_tests::{Daemon, Options};
use std::path::Path;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_verdict_is_the_exit_code_and_a_baseline_spares_the_dense_run() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first.json"), folder.path().join("second.json"));
    let corpus = corpus();
    let run = |tier: &str, more: &[&str]| {
        let mut args =
            vec!["--json", "evaluate", "--max-context", "2500", "--samples", "2", "--tasks", "niah_single_1", "--arm", "prefill"];
        args.extend(["--tier", tier, "--corpus", &corpus]);
        args.extend(more);
        daemon.skipctl(&args).unwrap()
    };
    // Two items tell nothing of a drop of .03, and everything of one of 1.
    let few = run("30%", &["--save-results", first.to_str().unwrap(), "--label", "low"]);
    assert_eq!(few.code, Some(11), "{}{}", few.stdout, few.stderr);
    let saved = read(&first);
    assert_eq!((&saved["label"], saved["arms"].as_array().unwrap().len()), (&json!("low"), 2));
    assert_eq!(saved["arms"][1]["scores"].as_array().unwrap().len(), 2);
    assert!(saved["arms"][1]["tables"][0].is_string() && saved["arms"][0]["tables"][0].is_null());
    let passes = run("30%", &["--max-drop", "1", "--baseline", first.to_str().unwrap(), "--save-results", second.to_str().unwrap()]);
    assert_eq!(passes.code, Some(0), "{}{}", passes.stdout, passes.stderr);
    let again = read(&second);
    assert_eq!(again["arms"], {
        let mut arms = saved["arms"].clone();
        arms[1]["gate"] = again["arms"][1]["gate"].clone();
        arms
    });
    let other = run("30%", &["--seed", "5", "--baseline", first.to_str().unwrap()]);
    assert_ne!(other.code, Some(0));
    assert!(other.stderr.contains("another seed"), "{}", other.stderr);
}

#[test]
fn prices_become_a_page() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (corpus, work) = (corpus(), folder.path().display().to_string());
    let args = [
        "price",
        "--lengths",
        "600,2100",
        "--rounds",
        "1",
        "--decode-tokens",
        "4",
        "--no-write",
        "--label",
        "a test",
        "--corpus",
        &corpus,
        "--work-dir",
        &work,
    ];
    let output = daemon.skipctl(&args).unwrap();
    assert!(output.stderr.contains("CLOCKS ARE NOT PINNED"), "on the terminal, not in the file alone: {}", output.stderr);
    let told = output.ok().unwrap();
    let next = format!("written to {work}/price.json: skipctl report --price-json {work}/price.json --out price.html\n");
    assert!(told.ends_with(&next), "{told}");
    let price = read(&folder.path().join("price.json"));
    let speed = price["speed"].as_array().unwrap();
    let tiers: Vec<&str> = speed.iter().filter(|s| s["length"] == 2100).map(|s| s["tier"].as_str().unwrap()).collect();
    assert_eq!(tiers[0], "dense");
    assert!(tiers.contains(&"30%") && tiers.contains(&"50%") && speed.len() == 2 * tiers.len(), "{tiers:?}");
    for row in speed {
        // A tier that a phase lacks has no time of it.
        let times = [&row["ttft_ms"], &row["tpot_ms"]].map(serde_json::Value::as_f64);
        assert!(times.iter().flatten().all(|&time| time > 0.0), "{row}");
        let there = match row["tier"].as_str().unwrap() {
            "dense" | "50%" => [true, true],
            "75%" | "85%" | "90%" => [false, true],
            _ => [true, false],
        };
        assert_eq!(times.map(|time| time.is_some()), there, "{row}");
        // The higher tiers are not reached by prompts so short.
        let skips = row["prefill_skipped"].as_f64().is_some_and(|share| share > 0.0);
        match (row["tier"].as_str().unwrap(), row["length"].as_u64().unwrap()) {
            ("dense", _) | (_, 600) => assert!(!skips, "below the first length of a table, too: {row}"),
            ("30%", _) => assert!(skips, "{row}"),
            _ => {}
        }
    }
    assert!(price["clocks"].as_str().unwrap().contains("NOT PINNED"));
    let page = folder.path().join("price.html");
    let file = folder.path().join("price.json").display().to_string();
    daemon.skipctl(&["report", "--price-json", &file, "--out", page.to_str().unwrap()]).unwrap().ok().unwrap();
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("a test"));
}

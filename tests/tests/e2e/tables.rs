//! Re-targeting while the daemon runs: running requests keep their table, new ones take the new; trial, persistence, precedence.

use crate::{completion, prose, text, votes};
use serde_json::{Value, json};
use skip_tests::process::eventually;
use skip_tests::{Daemon, Http, Options};
use std::time::Duration;

const TEXT: &str = "/v1/completions";

fn set(http: &Http, phase: &str, body: Value) -> Value {
    http.put(&format!("/skipd/v1/tables/{phase}"), body.to_string()).unwrap().expect(200).unwrap()
}

fn show(http: &Http, phase: &str) -> Value {
    http.get(&format!("/skipd/v1/tables/{phase}")).unwrap().expect(200).unwrap()
}

fn ask(http: &Http, prompt: &str, tokens: u32) -> Value {
    http.post(TEXT, completion(prompt, tokens).to_string()).unwrap().expect(200).unwrap()
}

fn running(http: &Http) -> u64 {
    http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["queue"]["running"].as_u64().unwrap()
}

#[test]
fn a_running_request_keeps_its_table_and_the_next_takes_the_new_one() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    assert_eq!(show(&http, "prefill")["decided_by"], "default", "a fresh import is dense until told otherwise");
    let told = set(&http, "prefill", json!({"selector": "50%"}));
    assert_eq!((&told["tier"], &told["decided_by"]), (&json!("50%"), &json!("set-table")));
    set(&http, "decode", json!({"selector": "75%"}));

    let prompt = prose(2600);
    let mut first = http
        .open(
            TEXT,
            &json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}})
                .to_string(),
        )
        .unwrap();
    eventually(Duration::from_secs(20), "the first request runs", || Ok((running(&http) == 1).then_some(()))).unwrap();
    set(&http, "prefill", json!({"selector": "none"}));
    set(&http, "decode", json!({"selector": "none"}));
    assert_eq!(running(&http), 1, "the tables changed while it ran");
    let mut last = Value::Null;
    while let Some(event) = first.event().unwrap() {
        last = event;
    }
    let own = &last["usage"]["skipd"];
    assert_eq!((&own["prefill"]["table"], &own["decode"]["table"]), (&json!("50%"), &json!("75%")));
    for phase in ["prefill", "decode"] {
        let (votes, skipped) = votes(&last, phase);
        assert!(0 < skipped && skipped < votes, "{phase}: {skipped} of {votes}");
    }
    let share = own["prefill"]["skipped"].as_f64().unwrap() / own["prefill"]["votes"].as_f64().unwrap();
    assert!((0.25..0.75).contains(&share), "the 50 % tier skipped {share}");
    assert_eq!(own["prefill"]["row"][0], 2048);

    let second = ask(&http, &prompt, 2);
    assert_eq!(second["usage"]["skipd"]["prefill"]["table"], Value::Null);
    assert_eq!(votes(&second, "prefill"), (0, 0), "dense takes no votes");
}

#[test]
fn a_table_on_trial_goes_away_unless_confirmed() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    set(&http, "prefill", json!({"selector": "30%"}));
    let trial = set(&http, "prefill", json!({"selector": "50%", "confirm_within": 1.0}));
    assert_eq!((&trial["tier"], &trial["pending"]["previous"]), (&json!("50%"), &json!("30%")));
    eventually(Duration::from_secs(5), "the trial ends", || Ok((show(&http, "prefill")["tier"] == "30%").then_some(()))).unwrap();
    assert_eq!(show(&http, "prefill")["pending"], Value::Null);

    set(&http, "prefill", json!({"selector": "50%", "confirm_within": 1.0}));
    let kept = http.post("/skipd/v1/tables/confirm", "").unwrap().expect(200).unwrap();
    assert_eq!((&kept["prefill"]["tier"], &kept["prefill"]["pending"]), (&json!("50%"), &Value::Null));
    std::thread::sleep(Duration::from_millis(1300)); // longer than the trial would have lasted
    assert_eq!(show(&http, "prefill")["tier"], "50%");

    set(&http, "prefill", json!({"selector": "40%", "confirm_within": 600}));
    let back = http.post("/skipd/v1/tables/revert", "").unwrap().expect(200).unwrap();
    assert_eq!((&back["prefill"]["tier"], &back["prefill"]["pending"]), (&json!("50%"), &Value::Null));
}

#[test]
fn a_persisted_table_survives_a_restart_and_an_unpersisted_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { folder: Some(folder.path().to_owned()), ..Options::default() };
    {
        let daemon = Daemon::start(options()).unwrap();
        set(&daemon.http(), "prefill", json!({"selector": "40%", "persist": true}));
        set(&daemon.http(), "decode", json!({"selector": "85%"}));
        // On trial and to be persisted, but never confirmed: must not be there afterwards.
        set(&daemon.http(), "decode", json!({"selector": "90%", "persist": true, "confirm_within": 600}));
    }
    let daemon = Daemon::start(options()).unwrap();
    let prefill = show(&daemon.http(), "prefill");
    assert_eq!((&prefill["tier"], &prefill["decided_by"]), (&json!("40%"), &json!("persisted")));
    assert_eq!(show(&daemon.http(), "decode")["decided_by"], "default");
}

#[test]
fn the_administrators_file_decides_after_a_reload_and_set_table_above_it() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    std::fs::write(daemon.folder().join("tables.json"), r#"{"skip_softmax_prefill_scale_table": [[1024, 500.0], [2048, 300.0]]}"#).unwrap();
    let shown = http.post("/skipd/v1/tables/reload", "").unwrap().expect(200).unwrap();
    assert_eq!((&shown["prefill"]["decided_by"], &shown["prefill"]["rows"][1]), (&json!("admin"), &json!([2048, 300.0])), "{shown}");
    assert!(shown["prefill"]["location"].as_str().unwrap().contains("tables.json"), "{shown}");
    assert_eq!(set(&http, "prefill", json!({"selector": "50%"}))["decided_by"], "set-table");
    std::fs::write(daemon.folder().join("tables.json"), r#"{"skip_softmax_prefill_scale_table": [[2048, 5], [1024, 6]]}"#).unwrap();
    let refused = http.post("/skipd/v1/tables/reload", "").unwrap();
    assert!(refused.status >= 400 && refused.body.contains("tables.json"), "{refused:?}");
    assert_eq!(show(&http, "prefill")["tier"], "50%", "the old one stays");
    daemon.assert_alive().unwrap();
}

#[test]
fn a_table_of_ones_own_and_the_tiers_are_shown() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    let tiers = http.get("/skipd/v1/tiers").unwrap().expect(200).unwrap();
    let names: Vec<_> = tiers["prefill"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["30%", "40%", "50%", "60%", "75%"]);
    let told = set(&http, "prefill", json!({"selector": [[512, 400.0]]}));
    let hash = told["hash"].as_str().unwrap();
    let answer = ask(&http, &prose(900), 1);
    assert_eq!(answer["usage"]["skipd"]["prefill"]["table"], format!("sha256:{}", &hash[..12]));
    assert_eq!(answer["usage"]["skipd"]["prefill"]["row"], json!([512, 400.0]));
    let (votes, skipped) = votes(&answer, "prefill");
    assert!(0 < skipped && skipped < votes, "{skipped} of {votes}");
    let short = ask(&http, "Shorter than the first row.", 1);
    assert_eq!(short["usage"]["skipd"]["prefill"]["votes"], 0, "below the first length attention is dense");
}

#[test]
fn a_request_may_bring_its_own_table() {
    let http = Daemon::shared().http();
    // A request does not wait for that, as set-table does: it is refused until then.
    let hashed = || Ok(http.get("/skipd/v1/status")?.expect(200)?["model"]["checkpoint_hash"].as_str().map(drop));
    eventually(Duration::from_secs(30), "the weights are hashed", hashed).unwrap();
    let mut body = completion(&prose(1300), 2);
    body["skipd"] = json!({"tables": {"prefill": "30%"}});
    let answer = http.post(TEXT, body.to_string()).unwrap().expect(200).unwrap();
    let (taken, skipped) = votes(&answer, "prefill");
    assert!(0 < skipped && skipped < taken, "{skipped} of {taken}");
    let plain = ask(&http, &prose(1300), 2);
    assert_eq!(votes(&plain, "prefill"), (0, 0), "it was for that request alone");
}

#[test]
fn at_s_above_the_length_the_answer_is_the_dense_one() {
    let http = Daemon::shared().http();
    let prompt = prose(700);
    let dense = ask(&http, &prompt, 8);
    let mut body = completion(&prompt, 8);
    let tables = json!({"prefill": [[1, 100000.0]], "decode": [[1, 100000.0]]});
    // Dense pages of the first one would do for it.
    body["skipd"] = json!({"tables": tables, "prefix_reuse": false});
    let guarded = http.post(TEXT, body.to_string()).unwrap().expect(200).unwrap();
    assert_eq!(text(&dense), text(&guarded));
    assert_eq!(votes(&guarded, "prefill").1, 0);
}

#[test]
fn a_table_that_skips_far_more_than_its_tier_promises_is_reported_and_taken_out() {
    // A ladder in which the 50 % tier has the rows of the 90 % one.
    let folder = tempfile::tempdir().unwrap();
    crate::lifecycle::copy(folder.path());
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let ladder = &mut config["skip_softmax_decode_scale_tables"];
    ladder["50%"] = ladder["90%"].clone();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, config.to_string()).unwrap();
    let options = Options { model: Some(folder.path().to_owned()), ..Options::default() };
    let mut daemon = Daemon::start(options.flags(&["--on-drift", "dense"])).unwrap();
    let http = daemon.http();
    assert_eq!(set(&http, "decode", json!({"selector": "50%"}))["tier"], "50%");
    assert!(
        http.get("/metrics").unwrap().body.lines().any(|l| l.starts_with("skipd_drift_alarm") && l.contains("decode") && l.ends_with(" 0"))
    );

    let body = json!({"prompt": prose(2200), "max_tokens": 4000, "ignore_eos": true, "stream": true}).to_string();
    let streams: Vec<_> = (0..3).map(|_| http.open(TEXT, &body).unwrap()).collect();
    let alarm = daemon
        .wait_for("the alarm", |http| {
            let status = http.get("/skipd/v1/status").ok()?.expect(200).ok()?;
            status["alarms"][0].as_str().map(str::to_owned)
        })
        .unwrap();
    drop(streams);
    assert!(alarm.starts_with("decode: drift: ") && alarm.ends_with("the tier stands for 50.0 %"), "{alarm}");
    let metrics = http.get("/metrics").unwrap().body;
    let gauge = |phase: &str| metrics.lines().find(|l| l.starts_with("skipd_drift_alarm") && l.contains(phase)).unwrap();
    assert!(gauge("decode").ends_with(" 1") && gauge("prefill").ends_with(" 0"), "{metrics}");
    let shown = eventually(Duration::from_secs(5), "it is dense", || {
        let shown = show(&http, "decode");
        Ok((shown["rows"] == Value::Null).then_some(shown))
    })
    .unwrap();
    assert!(shown["notices"].to_string().contains("dense because of drift"), "{shown}");
    let printed = daemon.skipctl(&["status"]).unwrap().ok().unwrap();
    assert!(printed.contains(&alarm), "{printed}");
    // The next set-table is somebody's word: the alarm is over.
    assert_eq!(set(&http, "decode", json!({"selector": "90%"}))["tier"], "90%");
    assert_eq!(http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["alarms"], json!([]));
}

#[test]
fn the_bus_sets_and_shows_tables_too() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let at = ["org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Tables"];
    let call = |args: &[&str]| daemon.bus().busctl(&[&["call"], &at[..], args].concat()).unwrap().ok().unwrap();
    call(&["SetTable", "ssa{sv}", "prefill", "50%", "1", "confirm_within", "d", "60"]);
    assert_eq!(show(&daemon.http(), "prefill")["tier"], "50%");
    call(&["Confirm"]);
    assert_eq!(show(&daemon.http(), "prefill")["pending"], Value::Null);
    assert!(call(&["Show"]).contains("50%"));
    call(&["SetTable", "ssa{sv}", "prefill", "[[1024, 7.5]]", "0"]);
    assert_eq!(show(&daemon.http(), "prefill")["rows"], json!([[1024, 7.5]]));
}

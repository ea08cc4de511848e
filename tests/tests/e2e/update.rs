//! Signed updates from the publisher's tool to the running daemon: taken over the socket and the bus, measured, kept or given up, refused by name, rolled back.

use crate::{completion, prose, votes};
use serde_json::{Value, json};
use skip_tests::process::{Output, binary, checkpoint, eventually};
use skip_tests::{Daemon, Http, Options};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A publisher's folder, with keys, and a device that trusts them.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        world.publish(&["init", &world.path("publisher")]);
        world
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn publish(&self, arguments: &[&str]) {
        let output = Command::new(binary("skip-bundle").unwrap()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Signs the checkpoint's own ladders with these changes as the next version.
    fn bundle(&self, name: &str, changes: Value) -> PathBuf {
        let config = std::fs::read(checkpoint().unwrap().join("config.json")).unwrap();
        let mut tables: serde_json::Map<String, Value> = serde_json::from_slice(&config).unwrap();
        tables.retain(|key, _| key.starts_with("skip_softmax"));
        tables.extend(changes.as_object().unwrap().clone());
        tables.retain(|_, value| !value.is_null());
        let file = self.path("signed.json");
        std::fs::write(&file, Value::Object(tables).to_string()).unwrap();
        let (out, of) = (self.path(name), format!("{}={file}", checkpoint().unwrap().display()));
        self.publish(&["sign", &self.path("publisher"), "--tables", &of, "--out", &out, "--note", name]);
        out.into()
    }

    fn device(&self) -> Daemon {
        let root = self.path("publisher/roots/1.root.json");
        let folder = Some(self.folder.path().to_owned());
        Daemon::start(Options { folder, ..Options::default() }.flags(&["--update-trust", &root])).unwrap()
    }
}

fn show(http: &Http) -> Value {
    http.get("/skipd/v1/update").unwrap().expect(200).unwrap()
}

fn prefill(http: &Http) -> Value {
    http.get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap()
}

fn apply(daemon: &Daemon, bundle: &Path) -> Output {
    daemon.skipctl(&["update", "apply", bundle.to_str().unwrap()]).unwrap()
}

fn trial_ends(http: &Http) -> Value {
    eventually(Duration::from_secs(240), "the trial ends", || Ok(Some(show(http)).filter(|shown| shown["probation"].is_null()))).unwrap()
}

#[test]
fn updates_are_measured_kept_given_up_refused_and_rolled_back() {
    let world = World::new();
    let first = world.bundle("first.tar", json!({"skip_softmax_prefill_target_sparsity": 0.3}));
    let daemon = world.device();
    let http = daemon.http();
    assert_eq!(prefill(&http)["decided_by"], "default");

    // Taken by skipctl, which waits for the verdict; the tables are in force and say where they are from.
    let said = apply(&daemon, &first).ok().unwrap_or_else(|error| panic!("{error:?}\n{}", daemon.log()));
    assert!(said.contains("version 1"), "{said}");
    let table = prefill(&http);
    assert_eq!((&table["decided_by"], &table["tier"]), (&json!("update"), &json!("30%")));
    assert!(table["location"].as_str().unwrap().contains("(update 1-"), "{table}");
    assert!(daemon.log().contains("RULER"), "{}", daemon.log());
    let answer = http.post("/v1/completions", completion(&prose(1500), 2).to_string()).unwrap().expect(200).unwrap();
    let (asked, skipped) = votes(&answer, "prefill");
    assert!(0 < skipped && skipped < asked, "{skipped} of {asked}");

    // Taken by its path over HTTP, while requests go on.
    let changes = json!({"skip_softmax_prefill_target_sparsity": 0.3, "skip_softmax_decode_target_sparsity": 0.5});
    let second = world.bundle("second.tar", changes);
    let shown = http.post("/skipd/v1/update/apply", json!({"path": second}).to_string()).unwrap().expect(200).unwrap();
    assert_eq!(shown["probation"]["slot"]["version"], 2);
    daemon.assert_alive().unwrap();
    let shown = trial_ends(&http);
    assert_eq!((&shown["active"]["version"], &shown["previous"]["version"], &shown["floor"]), (&json!(2), &json!(1), &json!(2)), "{shown}");

    // Refused by name; nothing changes.
    let refused = http.post("/skipd/v1/update/apply", std::fs::read(&first).unwrap()).unwrap().expect(409).unwrap();
    assert_eq!(refused["error"]["details"]["check"], "replay", "{refused}");
    let mut broken = std::fs::read(&second).unwrap();
    let at = broken.len() / 2;
    broken[at] ^= 1;
    let refused = http.post("/skipd/v1/update/apply", broken).unwrap().expect(409).unwrap();
    assert!(refused["error"]["details"]["check"].is_string(), "{refused}");
    assert_eq!(show(&http), shown);

    // Signed and well-formed, but it skips nothing where it should: given up, with the reason.
    let rows = json!([[1024, 1e-37]]);
    let useless = json!({"skip_softmax_prefill_scale_table": rows, "skip_softmax_prefill_scale_tables": null,
        "skip_softmax_prefill_calibration": null, "skip_softmax_decode_scale_tables": null, "skip_softmax_decode_calibration": null});
    let given_up = apply(&daemon, &world.bundle("useless.tar", useless));
    assert_eq!(given_up.code, Some(5), "{given_up:?}");
    let after = show(&http);
    assert!(after["reason"].as_str().unwrap().contains("skipped nothing"), "{after}");
    assert_eq!((&after["active"]["version"], &prefill(&http)["tier"]), (&json!(2), &json!("30%")));

    // A restart finds the committed update again.
    drop(daemon);
    let daemon = world.device();
    let http = daemon.http();
    eventually(Duration::from_secs(30), "the weights are hashed", || Ok((prefill(&http)["decided_by"] == "update").then_some(()))).unwrap();

    // Over the bus: properties, and back step by step.
    let property = ["get-property", "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Update", "Version"];
    eventually(Duration::from_secs(10), "the bus tells the version", || {
        Ok((daemon.bus().busctl(&property)?.ok()?.trim() == "t 2").then_some(()))
    })
    .unwrap();
    let call = ["call", "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Update", "Rollback"];
    daemon.bus().busctl(&call).unwrap().ok().unwrap();
    let decode = http.get("/skipd/v1/tables/decode").unwrap().expect(200).unwrap();
    assert_eq!((&show(&http)["active"]["version"], &decode["decided_by"]), (&json!(1), &json!("default")));
    daemon.skipctl(&["update", "rollback"]).unwrap().ok().unwrap();
    assert_eq!((&show(&http)["active"], &prefill(&http)["decided_by"]), (&Value::Null, &json!("default")));
    assert_eq!(daemon.skipctl(&["update", "rollback"]).unwrap().code, Some(5), "there is nothing to leave any more");
}

//! Clock profiles through the daemon, on a board of files. Its system bus is the test's own, and so is the systemd there, whose units run the real
//! program that writes clocks.

use crate::completion;
use serde_json::{Value, json};
use skip_tests::process::{binary, eventually, run};
use skip_tests::{Bus, Daemon, Http, Options};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use zbus::object_server::SignalEmitter;
use zbus::wire::{ObjectPath, OwnedObjectPath};
use zbus::{Connection, interface};

const GPC: &str = "sys/class/devfreq/gpu-gpc-0";
const ZONE: &str = "sys/class/thermal/thermal_zone0/temp";
const PATIENCE: Duration = Duration::from_secs(20);

type Listed = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// As much of systemd as starts and stops `skipd-profile@NAME.service`.
struct Systemd {
    program: PathBuf,
    board: PathBuf,
    active: Mutex<Vec<String>>,
    jobs: AtomicU32,
}

impl Systemd {
    fn program(&self, args: &[&str]) -> Option<i32> {
        run(Command::new(&self.program).arg("--root").arg(&self.board).args(args)).unwrap().code
    }

    fn stop(&self, unit: &str) {
        self.active.lock().unwrap().retain(|active| active != unit);
        self.program(&["restore", "--of", profile(unit)]);
    }

    /// Whether it started.
    fn start(&self, unit: &str) -> bool {
        let started = matches!(self.program(&["apply", profile(unit)]), Some(0 | 3));
        if started {
            self.active.lock().unwrap().push(unit.to_owned());
        } else {
            self.stop(unit);
        }
        started
    }

    async fn job(&self, emitter: &SignalEmitter<'_>, unit: &str, done: bool) -> OwnedObjectPath {
        let id = self.jobs.fetch_add(1, Ordering::Relaxed);
        let job = OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
        Self::job_removed(emitter, id, job.as_ref(), unit, if done { "done" } else { "failed" }).await.unwrap();
        job
    }
}

/// `skipd-profile@generic.service` is of profile generic.
fn profile(unit: &str) -> &str {
    unit.strip_prefix("skipd-profile@").and_then(|rest| rest.strip_suffix(".service")).unwrap()
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn subscribe(&self) {}

    fn list_units_by_patterns(&self, _states: Vec<String>, patterns: Vec<String>) -> Vec<Listed> {
        assert_eq!(patterns, ["skipd-profile@*.service"]);
        let none = || OwnedObjectPath::try_from("/").unwrap();
        let listed = |unit: &String| {
            let word = String::new;
            (unit.clone(), word(), word(), "active".into(), word(), word(), none(), 0, word(), none())
        };
        self.active.lock().unwrap().iter().map(listed).collect()
    }

    async fn start_unit(&self, name: String, _mode: String, #[zbus(signal_emitter)] emitter: SignalEmitter<'_>) -> OwnedObjectPath {
        let done = self.start(&name);
        self.job(&emitter, &name, done).await
    }

    async fn restart_unit(&self, name: String, _mode: String, #[zbus(signal_emitter)] emitter: SignalEmitter<'_>) -> OwnedObjectPath {
        self.stop(&name);
        let done = self.start(&name);
        self.job(&emitter, &name, done).await
    }

    async fn stop_unit(&self, name: String, _mode: String, #[zbus(signal_emitter)] emitter: SignalEmitter<'_>) -> OwnedObjectPath {
        self.stop(&name);
        self.job(&emitter, &name, true).await
    }

    #[zbus(signal)]
    async fn job_removed(emitter: &SignalEmitter<'_>, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

/// A board, systemd on a bus, and a daemon that takes that bus for the system's.
struct World {
    daemon: Daemon,
    bus: Bus,
    board: tempfile::TempDir,
    _systemd: Connection,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let (folder, board) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for open in [folder.path(), board.path()] {
            std::fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        skip_platform::lay_tree(include_str!("../../../platform/trees/thor-r39.txt"), board.path()).unwrap();
        let bus = Bus::start(folder.path()).unwrap();
        let program = binary("skipd-profile").unwrap();
        let systemd = Systemd { program, board: board.path().to_owned(), active: Mutex::default(), jobs: AtomicU32::new(1) };
        let builder = zbus::connection::Builder::address(bus.address().as_str());
        let serving = builder.serve_at("/org/freedesktop/systemd1", systemd).name("org.freedesktop.systemd1");
        let systemd = serving.build().await.unwrap();
        let daemon = start(&bus, board.path()).await;
        Self { daemon, bus, board, _systemd: systemd, _folder: folder }
    }

    fn http(&self) -> Http {
        self.daemon.http()
    }

    fn write(&self, path: &str, text: &str) {
        std::fs::write(self.board.path().join(path), text).unwrap();
    }

    fn min_freq(&self) -> String {
        std::fs::read_to_string(self.board.path().join(GPC).join("min_freq")).unwrap()
    }

    /// Every node with its bytes.
    fn nodes(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut nodes, mut folders) = (BTreeMap::new(), vec![self.board.path().join("sys")]);
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() { folders.push(path) } else { nodes.insert(path.clone(), std::fs::read(path).unwrap()).map_or((), drop) }
            }
        }
        nodes
    }

    /// The hardware runs as fast as it can, whatever it is told: no clock of a tree moves by itself.
    fn runs_fast(&self) {
        for (domain, now) in [("gpu-gpc-0", "1575000000"), ("gpu-nvd-0", "1692000000"), ("bwmgr", "4266000000")] {
            self.write(&format!("sys/class/devfreq/{domain}/cur_freq"), now);
        }
        for policy in 0..2 {
            self.write(&format!("sys/devices/system/cpu/cpufreq/policy{policy}/cpuinfo_cur_freq"), "2601000");
        }
    }

    /// Something the test does that takes its time: the bus's systemd must go on meanwhile.
    async fn beside<T: Send + 'static>(&self, what: impl FnOnce(Http) -> T + Send + 'static) -> T {
        let http = self.http();
        tokio::task::spawn_blocking(move || what(http)).await.unwrap()
    }

    async fn skipctl(&self, args: &[&str]) -> skip_tests::process::Output {
        let mut command = Command::new(binary("skipctl").unwrap());
        command.arg("--socket").arg(self.daemon.socket()).args(args);
        tokio::task::spawn_blocking(move || run(&mut command).unwrap()).await.unwrap()
    }

    async fn busctl(&self, as_nobody: bool, args: &[&str]) -> skip_tests::process::Output {
        let mut command = Command::new(if as_nobody { "setpriv" } else { "busctl" });
        if as_nobody {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "busctl"]);
        }
        command.arg(format!("--address={}", self.bus.address())).args(args);
        tokio::task::spawn_blocking(move || run(&mut command).unwrap()).await.unwrap()
    }
}

async fn start(bus: &Bus, board: &Path) -> Daemon {
    let environment = vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), bus.address())];
    let options = Options { bus: Some("system".into()), environment, ..Options::default() };
    let options = options.flags(&["--board-root", board.to_str().unwrap()]);
    tokio::task::spawn_blocking(|| Daemon::start(options).unwrap()).await.unwrap()
}

fn clocks(http: &Http) -> Value {
    http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["clocks"].clone()
}

fn apply(http: &Http, name: &str) -> skip_tests::Response {
    http.post("/skipd/v1/profile/apply", json!({"name": name}).to_string()).unwrap()
}

const PROFILE: [&str; 4] = ["call", "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Profile"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_applies_and_releases_profiles_and_nobody_else_does() {
    let world = World::new().await;
    let before = world.nodes();
    let listed = world.skipctl(&["profile", "list"]).await.ok().unwrap();
    assert!(listed.contains("thor-120w") && listed.contains("for power mode MAXN") && listed.contains("for orin"), "{listed}");
    let shown = world.skipctl(&["profile", "show"]).await.ok().unwrap();
    assert!(shown.contains("NVIDIA Jetson AGX Thor") && shown.contains("unpinned"), "{shown}");

    // Over the socket.
    let refused = world.beside(|http| apply(&http, "thor-maxn").expect(400).unwrap()).await;
    assert!(refused["error"]["param"] == "name" && refused["error"]["message"].as_str().unwrap().contains("power mode"), "{refused}");
    world.beside(|http| apply(&http, "fastest").expect(404).unwrap()).await;
    assert_eq!(world.nodes(), before, "what is refused changes nothing");
    let applied = world.beside(|http| apply(&http, "thor-120w").expect(200).unwrap()).await;
    assert_eq!((&applied["clocks"]["profile"], &applied["clocks"]["pins_gpu"]), (&json!("thor-120w"), &json!(true)));
    assert_eq!(world.min_freq(), "1575000000");
    if rustix::process::geteuid().is_root() {
        let outsider = world.http().of_user(65534, 65534);
        let [applied, released] = tokio::task::spawn_blocking(move || {
            let released = outsider.post("/skipd/v1/profile/release", "").unwrap();
            [apply(&outsider, "generic"), released]
        })
        .await
        .unwrap();
        for refused in [applied, released] {
            assert_eq!(refused.expect(403).unwrap()["error"]["code"], "access_denied");
        }
        for call in [&["Apply", "s", "generic"][..], &["Release"]] {
            let refused = world.busctl(true, &[&PROFILE, call].concat()).await;
            assert!(refused.stderr.contains("uid 65534 may not control skipd"), "{refused:?}");
        }
        world.busctl(true, &[&PROFILE[..], &["List"]].concat()).await.ok().expect("everybody may look");
    }

    // Another in its place, over the bus; then back to the first byte.
    world.busctl(false, &[&PROFILE[..], &["Apply", "s", "generic"]].concat()).await.ok().unwrap();
    assert_eq!(world.min_freq(), "315000000\n", "what the first profile pinned is put back");
    let property = ["get-property", "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Profile", "Active"];
    assert_eq!(world.busctl(false, &property).await.ok().unwrap().trim(), "s \"generic\"");
    let released = world.skipctl(&["profile", "release", "--json"]).await.ok().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&released).unwrap()["clocks"]["state"], "unpinned");
    assert_eq!(world.nodes(), before);
    world.skipctl(&["profile", "release"]).await.ok().expect("there is nothing to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_outlives_the_daemon_and_is_put_back_even_if_it_was_broken_off() {
    let mut world = World::new().await;
    let before = world.nodes();
    world.skipctl(&["profile", "apply", "thor-120w"]).await.ok().unwrap();
    world.daemon.process().signal("KILL").unwrap();
    world.daemon.process().wait(PATIENCE).unwrap();
    // As it is left by a program that ended between two writes.
    let state = world.board.path().join("run/skipd-profile/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    assert!(text.contains("\"phase\": \"applied\""), "{text}");
    std::fs::write(&state, text.replace("\"phase\": \"applied\"", "\"phase\": \"writing\"")).unwrap();
    world.daemon = start(&world.bus, world.board.path()).await;
    let shown = world.skipctl(&["profile", "show"]).await.ok().unwrap();
    assert!(shown.contains("uncontrolled (thor-120w)") && shown.contains("broken off"), "{shown}");
    world.skipctl(&["profile", "release"]).await.ok().unwrap();
    assert_eq!(world.nodes(), before);
    assert!(!state.exists());

    // Pinned by hand, past systemd and the daemon.
    let mut by_hand = Command::new(binary("skipd-profile").unwrap());
    run(by_hand.arg("--root").arg(world.board.path()).args(["apply", "thor-120w"])).unwrap().ok().unwrap();
    world.skipctl(&["profile", "release"]).await.ok().unwrap();
    assert_eq!(world.nodes(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_clocks_are_held_down_background_requests_wait_and_all_others_are_answered() {
    let world = World::new().await;
    world.runs_fast();
    world.skipctl(&["profile", "apply", "thor-120w"]).await.ok().unwrap();
    world.write(ZONE, "101000");
    world
        .beside(|http| {
            eventually(PATIENCE, "the daemon sees it", || Ok((clocks(&http)["state"] == "throttled").then_some(())))?;
            anyhow::ensure!(clocks(&http)["background_held"] == true && clocks(&http)["reasons"][0].as_str().unwrap().contains("101.0"));
            let metrics = http.get("/metrics")?.body;
            for sample in
                ["skipd_clock_state{model_name=\"smollm2\",state=\"throttled\"} 1", "skipd_background_held{model_name=\"smollm2\"} 1"]
            {
                anyhow::ensure!(metrics.contains(sample), "{sample} is not in\n{metrics}");
            }
            Ok(())
        })
        .await
        .unwrap();
    let mut body = completion("The capital of France is", 4);
    body["skipd"] = json!({"priority": "background"});
    let http = world.http();
    let held = tokio::task::spawn_blocking(move || http.post("/v1/completions", body.to_string()).unwrap().expect(200).unwrap());
    world
        .beside(|http| {
            let waiting = || http.get("/skipd/v1/status")?.expect(200);
            eventually(PATIENCE, "it waits", || Ok((waiting()?["queue"]["waiting"] == 1).then_some(())))?;
            http.post("/v1/completions", completion("One, two,", 2).to_string())?.expect(200)?;
            anyhow::ensure!(waiting()?["queue"]["waiting"] == 1);
            Ok(())
        })
        .await
        .unwrap();
    assert!(!held.is_finished());
    world.write(ZONE, "38800");
    assert_eq!(held.await.unwrap()["usage"]["completion_tokens"], 4);
    let shown = world.skipctl(&["profile", "show"]).await.ok().unwrap();
    assert!(shown.contains("pinned (thor-120w)") && !shown.contains("held back"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benchmark_pins_the_clocks_for_its_run_and_says_whether_they_held() {
    let world = World::new().await;
    world.runs_fast();
    let before = world.nodes();
    let bench =
        ["bench", "--profile", "generic", "--prefill-table", "[[256,150]]", "--prompts", "64", "-n", "2", "--rounds", "1", "--json"];
    let report: Value = serde_json::from_str(&world.skipctl(&bench).await.ok().unwrap()).unwrap();
    assert_eq!((&report["comparable"], &report["clock_profile"]), (&json!(true), &json!("generic")), "{report}");
    assert_eq!(world.nodes(), before);

    world.write(ZONE, "101000");
    let report: Value = serde_json::from_str(&world.skipctl(&bench).await.ok().unwrap()).unwrap();
    let why = report["incomparable_reason"].as_str().unwrap();
    assert!(report["comparable"] == false && why.contains("throttled") && why.contains("101.0"), "{report}");
    world.write(ZONE, "38800\n");
    assert_eq!(world.nodes(), before);

    // What is applied already stays so, and keeps others away.
    world.skipctl(&["profile", "apply", "thor-120w"]).await.ok().unwrap();
    let refused = world.skipctl(&bench).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("thor-120w is applied"), "{refused:?}");
    world.skipctl(&["profile", "release"]).await.ok().unwrap();

    // Interrupted, it puts them back too.
    let mut long = Command::new(binary("skipctl").unwrap());
    long.arg("--socket").arg(world.daemon.socket()).args(&bench[..5]).args(["--prompts", "64", "-n", "1000", "--rounds", "99"]);
    let mut long = long.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let code = world
        .beside(move |http| {
            eventually(PATIENCE, "it is pinned", || Ok((clocks(&http)["profile"] == "generic").then_some(())))?;
            anyhow::ensure!(Command::new("kill").args(["-s", "INT", &long.id().to_string()]).status()?.success());
            eventually(PATIENCE, "it ends", || Ok(long.try_wait()?))
        })
        .await
        .unwrap()
        .code();
    assert_eq!(code, Some(130));
    assert_eq!(world.nodes(), before);
}

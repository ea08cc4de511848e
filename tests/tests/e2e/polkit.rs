//! polkit on the system bus: asked about the sender of a call that the daemon's own rule refuses, and about nobody else. Bus and polkit are the
//! test's own; the caller is another user.

use skip_tests::process::{Output, run};
use skip_tests::{Bus, Daemon, Options};
use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zbus::{Connection, OwnedVariant, interface};

/// What it was asked: the subject's kind and bus name, the action, the flags.
type Question = (String, String, String, u32);

/// A polkit that allows what is in its list.
struct Polkit {
    allowed: Vec<&'static str>,
    delay: Duration,
    asked: Arc<Mutex<Vec<Question>>>,
}

#[interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Polkit {
    async fn check_authorization(
        &self,
        subject: (String, HashMap<String, OwnedVariant>),
        action: String,
        _details: HashMap<String, String>,
        flags: u32,
        _cancellation: String,
    ) -> ((bool, bool, HashMap<String, String>),) {
        let name = subject.1.get("name").and_then(|name| name.downcast_ref::<&str>().ok()).unwrap_or_default().to_owned();
        let allowed = self.allowed.contains(&action.as_str());
        self.asked.lock().unwrap().push((subject.0, name, action, flags));
        tokio::time::sleep(self.delay).await;
        ((allowed, false, HashMap::new()),)
    }
}

/// A daemon that takes the test's bus for the system's, and perhaps a polkit beside it.
struct World {
    daemon: Daemon,
    bus: Bus,
    asked: Arc<Mutex<Vec<Question>>>,
    _polkit: Option<Connection>,
    _folder: tempfile::TempDir,
}

impl World {
    /// None where this process is not root, and so can be nobody else.
    async fn new(polkit: Option<(&[&'static str], Duration)>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: there are no two users to be");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Another user must reach the bus.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let bus = Bus::start(folder.path()).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let polkit = match polkit {
            None => None,
            Some((allowed, delay)) => {
                let polkit = Polkit { allowed: allowed.to_vec(), delay, asked: asked.clone() };
                let builder = zbus::connection::Builder::address(bus.address().as_str());
                let serving = builder.serve_at("/org/freedesktop/PolicyKit1/Authority", polkit).name("org.freedesktop.PolicyKit1");
                Some(serving.build().await.unwrap())
            }
        };
        let environment = vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), bus.address())];
        let options = Options { bus: Some("system".into()), environment, ..Options::default() };
        let daemon = tokio::task::spawn_blocking(|| Daemon::start(options).unwrap()).await.unwrap();
        Some(Self { daemon, bus, asked, _polkit: polkit, _folder: folder })
    }

    /// A call by a user who is in no group.
    async fn outsider(&self, args: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "busctl"]);
        command.arg(format!("--address={}", self.bus.address())).args(["call", "org.skipd.Skipd1", "/org/skipd/Skipd1"]).args(args);
        tokio::task::spawn_blocking(move || run(&mut command).unwrap()).await.unwrap()
    }

    fn asked(&self) -> Vec<Question> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

const SET_TABLE: [&str; 6] = ["org.skipd.Skipd1.Tables", "SetTable", "ssa{sv}", "prefill", "none", "0"];
const TOKENIZE: [&str; 4] = ["org.skipd.Skipd1.Manager", "Tokenize", "s", "hello"];
const ROLLBACK: [&str; 2] = ["org.skipd.Skipd1.Update", "Rollback"];
const SHOW: [&str; 2] = ["org.skipd.Skipd1.Update", "Show"];
const DRAIN: [&str; 2] = ["org.skipd.Skipd1.Manager", "Drain"];
const JOB: [&str; 5] = ["org.skipd.Skipd1.Jobs", "Start", "sa{sv}", "qualify", "0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polkit_lets_an_outsider_do_what_it_allows_and_no_more() {
    let Some(world) = World::new(Some((&["org.skipd.set-table", "org.skipd.generate"], Duration::ZERO))).await else { return };
    for (call, action) in [(&SET_TABLE[..], "org.skipd.set-table"), (&TOKENIZE[..], "org.skipd.generate")] {
        world.outsider(call).await.ok().unwrap();
        let asked = world.asked();
        let [(kind, name, of, flags)] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((kind.as_str(), of.as_str()), ("system-bus-name", action));
        assert!(name.starts_with(':'), "a connection's own name: {name}");
        let daemon = world.bus.busctl(&["status", "org.skipd.Skipd1"]).unwrap().ok().unwrap();
        assert!(!daemon.contains(&format!("UniqueName={name}\n")), "it was asked about the daemon itself: {daemon}");
        // busctl says that it waits while a person is asked.
        assert_eq!(*flags, 1);
    }
    let refused = world.outsider(&JOB).await;
    assert!(refused.stderr.contains("uid 65534 may not control skipd"), "{refused:?}");
    assert!(refused.stderr.contains("polkit does not allow org.skipd.job either"), "{refused:?}");
    assert_eq!(world.asked().len(), 1);
    // No action stands for draining: the daemon's own rule alone does.
    let refused = world.outsider(&DRAIN).await;
    assert!(refused.stderr.contains("uid 65534 may not control skipd"), "{refused:?}");
    assert_eq!(world.asked(), []);
    world.daemon.assert_alive().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polkit_is_asked_about_updates_and_not_about_looking_at_them() {
    let Some(world) = World::new(Some((&["org.skipd.update"], Duration::ZERO))).await else { return };
    // Let through, and told by the daemon that there is nothing to leave.
    let allowed = world.outsider(&ROLLBACK).await;
    assert!(!allowed.stderr.contains("may not control skipd") && allowed.code != Some(0), "{allowed:?}");
    assert_eq!(world.asked().iter().map(|asked| asked.2.as_str()).collect::<Vec<_>>(), ["org.skipd.update"]);
    world.outsider(&SHOW).await.ok().unwrap();
    assert_eq!(world.asked(), []);
    drop(world);

    let Some(world) = World::new(Some((&["org.skipd.set-table"], Duration::ZERO))).await else { return };
    let refused = world.outsider(&ROLLBACK).await;
    assert!(refused.stderr.contains("polkit does not allow org.skipd.update either"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_by_the_daemon_s_own_rule_is_not_asked_about() {
    let Some(world) = World::new(Some((&[], Duration::ZERO))).await else { return };
    let call = [&["call", "org.skipd.Skipd1", "/org/skipd/Skipd1"][..], &SET_TABLE].concat();
    world.bus.busctl(&call).unwrap().ok().unwrap();
    assert_eq!(world.asked(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_polkit_the_daemon_s_own_rule_stands() {
    let Some(world) = World::new(None).await else { return };
    let refused = world.outsider(&SET_TABLE).await;
    assert!(refused.stderr.contains("uid 65534 may not control skipd"), "{refused:?}");
    assert!(!refused.stderr.contains("polkit"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polkit_that_does_not_answer_keeps_nobody_waiting() {
    let Some(world) = World::new(Some((&["org.skipd.set-table"], Duration::from_secs(60)))).await else { return };
    let began = Instant::now();
    // A caller that does not wait for a person.
    let refused = world.outsider(&[&["--allow-interactive-authorization=no"][..], &SET_TABLE].concat()).await;
    assert!(refused.stderr.contains("uid 65534 may not control skipd"), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(world.asked().first().map(|asked| asked.3), Some(0));
    world.daemon.assert_alive().unwrap();
}

//! A machine that goes to sleep and wakes: logind, as a stand-in on the test's bus, is kept waiting until the steps stand still.

use skip_tests::process::eventually;
use skip_tests::{Bus, Daemon, Options, Stream};
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use zbus::object_server::SignalEmitter;
use zbus::{OwnedFd, interface};

const PATH: &str = "/org/freedesktop/login1";

/// A logind that delays a sleep while somebody holds what it gave.
#[derive(Clone, Default)]
struct Logind {
    /// Its ends of what it gave.
    given: Arc<Mutex<Vec<std::io::PipeReader>>>,
    count: Arc<AtomicUsize>,
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    async fn inhibit(&self, what: String, who: String, _why: String, mode: String) -> OwnedFd {
        assert_eq!((what.as_str(), who.as_str(), mode.as_str()), ("sleep", "skipd", "delay"));
        let (ours, theirs) = std::io::pipe().unwrap();
        self.given.lock().unwrap().push(ours);
        self.count.fetch_add(1, Ordering::AcqRel);
        OwnedFd::from(std::os::fd::OwnedFd::from(theirs))
    }

    #[zbus(signal)]
    async fn prepare_for_sleep(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

impl Logind {
    /// Waits until the daemon lets the machine sleep.
    fn wait_for_release(&self) {
        for mut held in self.given.lock().unwrap().drain(..) {
            assert_eq!(held.read(&mut [0]).unwrap(), 0);
        }
    }
}

/// Events with the time at which they came, read elsewhere.
fn follow(mut stream: Stream) -> mpsc::Receiver<Instant> {
    let (came, coming) = mpsc::channel();
    std::thread::spawn(move || {
        while stream.event().unwrap().is_some() {
            if came.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    coming
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sleeping_machine_computes_nothing_and_goes_on_where_it_stood() {
    let folder = tempfile::tempdir().unwrap();
    let bus = Bus::start(folder.path()).unwrap();
    let logind = Logind::default();
    let serving = zbus::connection::Builder::address(bus.address().as_str()).serve_at(PATH, logind.clone()).name("org.freedesktop.login1");
    let connection = serving.build().await.unwrap();
    let emitter = SignalEmitter::new(&connection, PATH).unwrap();
    let environment = vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), bus.address())];
    let options = Options { bus: Some("system".into()), environment, ..Options::default() };
    let daemon = tokio::task::spawn_blocking(|| Daemon::start(options).unwrap()).await.unwrap();
    let inhibited = |n| {
        let count = logind.count.clone();
        move || eventually(Duration::from_secs(10), "it delays sleep", || Ok((count.load(Ordering::Acquire) == n).then_some(()))).unwrap()
    };
    tokio::task::spawn_blocking(inhibited(1)).await.unwrap();

    let body = r#"{"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true}"#;
    let events = follow(daemon.http().open("/v1/completions", body).unwrap());
    events.recv_timeout(Duration::from_secs(20)).expect("a token");
    Logind::prepare_for_sleep(&emitter, true).await.unwrap();
    let released = logind.clone();
    tokio::task::spawn_blocking(move || released.wait_for_release()).await.unwrap();
    // What was computed before may still be on its way.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = events.try_iter().count();
    assert!(before < 299, "it ended before the machine slept");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(events.try_iter().count(), 0, "a step ran in a sleeping machine");
    assert_eq!(daemon.http().get("/health").unwrap().status, 200);

    Logind::prepare_for_sleep(&emitter, false).await.unwrap();
    let after = tokio::task::spawn_blocking(move || events.iter().count()).await.unwrap();
    assert!(after > 0, "{}", daemon.log());
    tokio::task::spawn_blocking(inhibited(2)).await.unwrap();
    assert!(daemon.log().contains("the device is there"), "{}", daemon.log());
    daemon.assert_alive().unwrap();
}

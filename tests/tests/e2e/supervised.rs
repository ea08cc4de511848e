//! What systemd sees of the daemon: a socket it passed on, readiness, status and stopping told to its notify socket.

use skip_tests::process::eventually;
use skip_tests::{Daemon, Options};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

/// A supervisor's notify socket in `folder`, and the options that tell the daemon of it.
fn notify_socket(folder: &Path) -> (UnixDatagram, Options) {
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let environment = vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())];
    (socket, Options { environment, ..Options::default() })
}

/// Reads messages up to the one that holds `wanted`; gives all of them.
fn until(socket: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let size = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("{wanted} never came, but {all:?}: {e}"));
        all.push(String::from_utf8_lossy(&buffer[..size]).trim_end().to_owned());
        if all.last().is_some_and(|message| message.contains(wanted)) {
            return all;
        }
    }
}

#[test]
fn a_socket_that_systemd_passes_is_served_and_left_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("skipd.sock");
    // It listens, and becomes skipd when the first client connects.
    let wrapper = ["systemd-socket-activate", "--listen", socket.to_str().unwrap()].map(str::to_owned).to_vec();
    let mut daemon = Daemon::start(Options { folder: Some(folder.path().to_owned()), wrapper, ..Options::default() }).unwrap();
    daemon.assert_alive().unwrap();
    let log = daemon.log();
    assert!(log.contains("Listening on") && log.contains("answering"), "{log}");
    daemon.process().signal("TERM").unwrap();
    assert_eq!(daemon.process().wait(Duration::from_secs(5)).unwrap().code(), Some(0), "{}", daemon.log());
    assert!(socket.exists(), "it is systemd's to remove");
}

#[test]
fn the_notify_socket_hears_ready_status_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, options) = notify_socket(folder.path());
    let mut daemon = Daemon::start(options).unwrap();
    let told = until(&notify, "STATUS=serving smollm2");
    assert_eq!(told[0], "READY=1", "socket and bus answer; the status says how far the model is");
    assert!(told.iter().any(|message| message.starts_with("STATUS=the model is loading")), "{told:?}");
    assert!(!told.iter().any(|message| message.contains("STOPPING") || message.contains("WATCHDOG")), "{told:?}");
    daemon.process().signal("TERM").unwrap();
    until(&notify, "STOPPING=1");
    assert_eq!(daemon.process().wait(Duration::from_secs(5)).unwrap().code(), Some(0));
}

#[test]
fn the_status_line_says_why_there_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, options) = notify_socket(folder.path());
    let (code, log) = Daemon::refused(Options { model: Some("/nonexistent".into()), ..options }, "none").unwrap();
    assert_eq!(code, Some(3), "{log}");
    let told = until(&notify, "STOPPING=1");
    assert!(told.iter().any(|message| message.starts_with("STATUS=cannot load /nonexistent")), "{told:?}");
}

#[test]
fn a_dead_notify_socket_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, options) = notify_socket(folder.path());
    drop(notify);
    let daemon = Daemon::start(options).unwrap();
    daemon.assert_alive().unwrap();
    eventually(Duration::from_secs(5), "it is in the log", || Ok(daemon.log().contains("systemd was not told").then_some(()))).unwrap();
}

/// Options of a daemon whose supervisor wants to hear of it within a second.
fn watched(options: Options, flags: &[&str]) -> Options {
    let mut options = options.flags(flags);
    options.environment.push(("WATCHDOG_USEC".to_owned(), "1000000".to_owned()));
    options
}

/// Pings within two seconds: what a supervisor of that limit would count.
fn pings(socket: &UnixDatagram) -> usize {
    let end = std::time::Instant::now() + Duration::from_secs(2);
    let mut buffer = [0; 4096];
    let mut count = 0;
    while let Some(left) = end.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).unwrap();
        if let Ok(size) = socket.recv(&mut buffer) {
            count += usize::from(buffer[..size].starts_with(b"WATCHDOG=1"));
        }
    }
    count
}

#[test]
fn the_watchdog_is_fed_while_loading_idle_and_busy() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, options) = notify_socket(folder.path());
    let mut daemon = Daemon::launch(watched(options, &[])).unwrap();
    until(&notify, "WATCHDOG=1");
    daemon.wait_for("skipd is ready", |http| http.get("/ready").ok().filter(|answer| answer.status == 200)).unwrap();
    // Four a second are looked for; this machine may be slow, a supervisor is content with one.
    assert!(pings(&notify) >= 2, "idle");
    let busy = r#"{"prompt": "Once", "max_tokens": 4000, "ignore_eos": true, "stream": true}"#;
    let mut stream = daemon.http().open("/v1/completions", busy).unwrap();
    stream.event().unwrap().expect("a token");
    assert!(pings(&notify) >= 2, "busy");
    drop(stream);
    daemon.assert_alive().unwrap();
}

#[test]
fn a_step_that_is_stuck_starves_the_watchdog_though_the_socket_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, options) = notify_socket(folder.path());
    let mut daemon = Daemon::start(watched(options, &["--backend", "auto", "--inject-stall-at-step", "5"])).unwrap();
    assert!(pings(&notify) >= 2, "it works before");
    let mut stream = daemon.http().open("/v1/completions", r#"{"prompt": "Once", "max_tokens": 50, "stream": true}"#).unwrap();
    stream.event().unwrap().expect("a token of a step before");
    eventually(Duration::from_secs(10), "no ping for two seconds", || Ok((pings(&notify) == 0).then_some(()))).unwrap();
    assert_eq!(daemon.http().get("/health").unwrap().status, 200, "{}", daemon.log());
    assert!(daemon.log().contains("the watchdog is no longer fed"), "{}", daemon.log());
    // Who stops it is not kept waiting by the step.
    daemon.process().signal("TERM").unwrap();
    assert!(daemon.process().wait(Duration::from_secs(8)).is_ok(), "{}", daemon.log());
}

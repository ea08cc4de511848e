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

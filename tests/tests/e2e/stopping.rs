//! Every way to be stopped: while it loads, under load, by an impatient second signal, with connections that say nothing.

use crate::lifecycle::copy;
use serde_json::{Value, json};
use skip_tests::http::Stream;
use skip_tests::{Daemon, Options};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};
use zbus::{OwnedFd as StreamFd, OwnedObjectPath, Proxy, Variant};

const TEXT: &str = "/v1/completions";

/// An answer that goes on for minutes.
fn endless() -> Value {
    json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true})
}

fn begin(daemon: &Daemon) -> Stream {
    let mut stream = daemon.http().open(TEXT, &endless().to_string()).unwrap();
    stream.event().unwrap().expect("a first piece before the signal");
    stream
}

/// Signals, and gives the time until the process has ended; it must end well.
fn stop(daemon: &mut Daemon, signal: &str) -> Duration {
    let told = Instant::now();
    daemon.process().signal(signal).unwrap();
    let status = daemon.process().wait(Duration::from_secs(20)).unwrap();
    let took = told.elapsed();
    let log = daemon.log();
    assert!(status.code() == Some(0) && !log.contains("panicked"), "{status}\n{log}");
    assert!(!daemon.socket().exists(), "the socket is removed");
    took
}

#[test]
fn a_signal_while_the_model_loads_ends_it_at_once() {
    // Opening a FIFO that nobody writes to blocks: one file keeps the folder from being read, the other the tokenizer, while weights load.
    for file in ["generation_config.json", "tokenizer.json"] {
        let folder = tempfile::tempdir().unwrap();
        copy(folder.path());
        let path = folder.path().join(file);
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut daemon = Daemon::launch(Options { model: Some(folder.path().to_owned()), ..Options::default() }).unwrap();
        let state = daemon.wait_for("it loads", |http| http.get("/ready").ok()?.expect(503).ok()).unwrap();
        assert!(state["state"] == "loading" || state["state"] == "starting", "{state}");
        std::thread::sleep(Duration::from_millis(300));
        let took = stop(&mut daemon, "TERM");
        assert!(took < Duration::from_secs(1), "{file}: {took:?}");
    }
}

#[test]
fn a_signal_in_the_middle_of_the_weights_ends_it_at_once() {
    let mut daemon = Daemon::launch(Options::default()).unwrap();
    let loading = daemon.wait_for("weights are loading", |http| {
        let ready = http.get("/ready").ok()?;
        let progress = serde_json::from_str::<Value>(&ready.body).ok()?["progress"].as_f64()?;
        (progress > 0.0).then_some(progress)
    });
    println!("stopped at {} of the weights", loading.unwrap());
    let took = stop(&mut daemon, "INT");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_second_signal_ends_it_whatever_still_runs() {
    let mut daemon = Daemon::start(Options::default().flags(&["--drain-seconds", "60"])).unwrap();
    let mut stream = begin(&daemon);
    daemon.process().signal("TERM").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(daemon.process().ended().unwrap().is_none(), "the first lets what runs finish\n{}", daemon.log());
    stream.event().unwrap().expect("it goes on");
    let took = stop(&mut daemon, "INT");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_bus_that_says_nothing_does_not_hold_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let silent = UnixListener::bind(folder.path().join("silent")).unwrap();
    let bus = format!("unix:path={}", folder.path().join("silent").display());
    let mut daemon = Daemon::launch(Options { bus: Some(bus), ..Options::default() }).unwrap();
    let (_connection, _) = silent.accept().unwrap();
    let took = stop(&mut daemon, "TERM");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn connections_that_say_nothing_do_not_delay_a_stop() {
    let mut daemon = Daemon::start(Options::default()).unwrap();
    let connect = |bytes: &[u8]| {
        let mut socket = UnixStream::connect(daemon.socket()).unwrap();
        socket.write_all(bytes).unwrap();
        socket
    };
    let silent = connect(b"");
    let half_head = connect(b"POST /v1/completions HTTP/1.1\r\nhost: a");
    let half_body = connect(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1000\r\n\r\n{\"prompt\": ");
    let mut kept = connect(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(kept.read(&mut [0; 1024]).unwrap() > 0, "an answer, and the connection stays");
    let took = stop(&mut daemon, "TERM");
    assert!(took < Duration::from_millis(900), "{took:?}\n{}", daemon.log());
    drop((silent, half_head, half_body, kept));
}

/// Reads a bus stream to its end.
fn bus_events(stream: StreamFd) -> Vec<Value> {
    let lines = BufReader::new(File::from(OwnedFd::from(stream))).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_keeps_to_the_drain_limit_and_every_stream_has_one_end() {
    // Two run on the socket and one waits; one more is on the bus, and one answer is not streamed.
    let mut daemon = Daemon::start(Options::default().flags(&["--drain-seconds", "1", "--max-running", "3"])).unwrap();
    let mut streams: Vec<Stream> = (0..2).map(|_| begin(&daemon)).collect();
    let connection = zbus::connection::Builder::address(daemon.bus().address().as_str()).build().await.unwrap();
    let manager = Proxy::new(&connection, "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Manager").await.unwrap();
    let options = HashMap::from([("max_tokens", Variant::U32(4000)), ("ignore_eos", Variant::Bool(true))]);
    let (_, on_bus): (OwnedObjectPath, StreamFd) = manager.call("Generate", &("Hello", options)).await.unwrap();
    let on_bus = std::thread::spawn(move || bus_events(on_bus));
    let whole = std::thread::spawn({
        let http = daemon.http();
        let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true}).to_string();
        move || http.post(TEXT, body).unwrap()
    });
    daemon
        .wait_for("one waits", |http| {
            let status = http.get("/skipd/v1/status").ok()?.expect(200).ok()?;
            (status["queue"]["running"] == 3 && status["queue"]["waiting"] == 1).then_some(())
        })
        .unwrap();
    streams.push(daemon.http().open(TEXT, &endless().to_string()).unwrap());
    let half_body = UnixStream::connect(daemon.socket()).unwrap();
    (&half_body).write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1000\r\n\r\n{").unwrap();
    // The third stream may still be on its way in.
    std::thread::sleep(Duration::from_millis(200));

    let took = stop(&mut daemon, "TERM");
    assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&took), "{took:?}\n{}", daemon.log());
    for stream in streams {
        assert_eq!(crate::ends(&stream.rest().unwrap()), ["shutdown"]);
    }
    let refused = whole.join().unwrap().expect(503).unwrap();
    assert_eq!(refused["error"]["code"], "shutdown");
    let events = on_bus.join().unwrap();
    let ends: Vec<_> = events.iter().filter(|e| e["event"] == "finished").map(|e| &e["reason"]).collect();
    assert_eq!(ends, [&json!("shutdown")]);
    assert_eq!(events.last().unwrap()["error"]["code"], "shutdown");
}

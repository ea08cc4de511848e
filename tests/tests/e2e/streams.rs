//! What a stream promises, with a real tokenizer, real connections and a real process: whole characters, and nothing left behind.

use crate::lifecycle::copy;
use crate::{ends, streamed_text, text};
use serde_json::{Value, json};
use skip_tests::process::eventually;
use skip_tests::{Daemon, Options};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use zbus::{OwnedFd as StreamFd, OwnedObjectPath, Proxy, Variant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// What the model is held to say: joined and skin-toned emoji, flags, ideographs, combining marks, syllables of several signs.
const SAID: &str = "👨‍👩‍👧👩🏽‍🚒🇩🇪🇫🇷日本語e\u{301}नमस्ते";

/// The text of the lines that a descriptor of the bus carries, and their one end.
async fn on_bus(manager: &Proxy<'_>, form: &Value, stop: &str) -> (String, Value) {
    let options = HashMap::from([
        ("max_tokens", Variant::U32(200)),
        ("structured_outputs", Variant::from(form.to_string())),
        ("stop", Variant::from(stop.to_owned())),
    ]);
    let messages = json!([{"role": "user", "content": "Say it."}]).to_string();
    let (_, stream): (OwnedObjectPath, StreamFd) = manager.call("Chat", &(messages, options)).await.unwrap();
    let mut lines = String::new();
    File::from(OwnedFd::from(stream)).read_to_string(&mut lines).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(events.iter().filter(|event| event["event"] == "finished").count(), 1, "{lines}");
    (said, events.last().unwrap()["reason"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn signs_that_are_many_tokens_are_said_whole_on_every_interface() {
    let daemon = Daemon::shared();
    let http = daemon.http();
    let connection = zbus::connection::Builder::address(daemon.bus().address().as_str()).build().await.unwrap();
    let manager = Proxy::new(&connection, "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Manager").await.unwrap();
    let form = json!({"choice": [SAID]});
    // A stop string that never comes, and one in the middle that begins as the flag before it does.
    for (stop, shown) in [("🇩🇬", SAID), ("🇫🇷", "👨‍👩‍👧👩🏽‍🚒🇩🇪")] {
        let mut body = json!({"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 200, "stop": stop});
        body["structured_outputs"] = form.clone();
        let whole = http.post(CHAT, body.to_string()).unwrap().expect(200).unwrap();
        assert_eq!((text(&whole), &whole["choices"][0]["finish_reason"]), (shown, &json!("stop")));
        body["stream"] = true.into();
        let events = http.post(CHAT, body.to_string()).unwrap().events().unwrap();
        assert_eq!((streamed_text(&events).as_str(), ends(&events)), (shown, vec!["stop"]));
        assert!(events.iter().all(|event| !event.to_string().contains('\u{fffd}')));
        assert_eq!(on_bus(&manager, &form, stop).await, (shown.to_owned(), json!("stop")));
    }
    let tokens = http.post("/skipd/v1/tokenize", json!({"text": SAID}).to_string()).unwrap().expect(200).unwrap();
    assert!(tokens["tokens"].as_array().unwrap().len() > SAID.chars().count(), "signs of several tokens: {tokens}");
}

/// Descriptors and threads of a process.
fn held(pid: u32) -> (usize, usize) {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("fd"), count("task"))
}

#[test]
fn a_thousand_clients_that_come_and_go_leave_no_descriptor_no_thread_and_no_page() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    let send = |bytes: &str| {
        let mut socket = UnixStream::connect(daemon.socket()).unwrap();
        // One that was told of a full house has been closed already.
        let _ = socket.write_all(bytes.as_bytes());
        socket
    };
    let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true}).to_string();
    let whole = format!("POST {TEXT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let free = || http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["cache"]["free"].clone();
    daemon.assert_alive().unwrap();
    let (before, free_before) = (held(daemon.pid()), free());
    for turn in 0..1000 {
        match turn % 40 {
            0..30 => drop(send("")),
            30..34 => drop(send("POST /v1/completions HTTP/1.1\r\nhost")),
            34..38 => drop(send(&whole[..whole.len() - 10])),
            38 => drop(send(&whole)),
            _ => {
                let mut streaming = http.open(TEXT, &body).unwrap();
                streaming.event().unwrap().expect("a first piece, or a refusal");
            }
        }
    }
    eventually(Duration::from_secs(20), "all is as before", || {
        let (now, free_now) = (held(daemon.pid()), free());
        // Threads of the runtime for files come and go with what else the daemon does: two, where a thread a client would be hundreds.
        Ok((now.0 <= before.0 && now.1 <= before.1 + 2 && free_now == free_before).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {before:?} {free_before}, now {:?} {}\n{}", held(daemon.pid()), free(), daemon.log()));
    daemon.assert_alive().unwrap();
}

/// Processes that a process has begun.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()).collect()
}

#[test]
fn a_kill_under_load_leaves_nothing_that_stops_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { folder: Some(folder.path().to_owned()), ..Options::default() };
    let mut daemon = Daemon::start(options()).unwrap();
    let http = daemon.http();
    // A conversation, so that the process which renders templates is there too.
    let body =
        json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4000, "ignore_eos": true, "stream": true}).to_string();
    let mut streams: Vec<_> = (0..3).map(|_| http.open(CHAT, &body).unwrap()).collect();
    streams.iter_mut().for_each(|stream| drop(stream.event().unwrap().expect("a first piece")));
    http.put("/skipd/v1/tables/prefill", r#"{"selector": "30%", "persist": true}"#).unwrap().expect(200).unwrap();
    let helpers = children(daemon.pid());
    assert!(!helpers.is_empty(), "a renderer runs");

    daemon.process().signal("KILL").unwrap();
    daemon.process().wait(Duration::from_secs(5)).unwrap();
    for stream in streams {
        // Cut off: no end was told, and none is made up.
        let rest = stream.rest().unwrap_or_default();
        assert_eq!(ends(&rest), Vec::<&str>::new());
    }
    let lives = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).exists();
    eventually(Duration::from_secs(5), "its helpers end", || Ok((!helpers.iter().any(lives)).then_some(()))).unwrap();
    assert!(daemon.socket().exists(), "the socket is stale");

    let next = Daemon::start(options()).unwrap();
    next.assert_alive().unwrap();
    let shown = next.http().get("/skipd/v1/tables/prefill").unwrap().expect(200).unwrap();
    assert_eq!((&shown["tier"], &shown["decided_by"]), (&json!("30%"), &json!("persisted")), "{shown}");
}

/// A request with this name by hand: curl has no header for it in the other tests.
fn named(daemon: &Daemon, name: &str, body: &str) -> UnixStream {
    let mut socket = UnixStream::connect(daemon.socket()).unwrap();
    let head =
        format!("POST {TEXT} HTTP/1.1\r\nhost: a\r\nx-request-id: {name}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all((head + body).as_bytes()).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_requests_and_never_says_what_they_say() {
    const MARK: &str = "xylograph";
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let daemon = Daemon::start(Options { model: Some(folder.path().to_owned()), ..Options::default().flags(&["--log", "debug"]) }).unwrap();
    let http = daemon.http();
    let mut answer = String::new();
    let prompt = format!("The {MARK} said");
    named(&daemon, "robot-7", &json!({"prompt": prompt, "max_tokens": 8, "temperature": 0}).to_string())
        .read_to_string(&mut answer)
        .unwrap();
    assert!(answer.contains("x-request-id: robot-7") && answer.contains("200 OK"), "{answer}");
    let said: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let said = text(&said).trim().to_owned();
    assert!(said.len() > 8, "{said}");

    // Every way for words to come in: messages, functions, forms, stop strings, wrong fields, text to tokenise, the bus.
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 4});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        http.post(CHAT, body.to_string()).unwrap().status
    };
    assert_eq!(chat(json!({"stop": MARK, "user": MARK, "metadata": {"a": MARK}})), 200);
    assert_eq!(chat(json!({"structured_outputs": {"choice": [MARK]}})), 200);
    for wrong in [json!({"temperature": MARK}), json!({"tools": MARK}), json!({"structured_outputs": {"regex": format!("({MARK}")}})] {
        assert_eq!(chat(wrong), 400);
    }
    http.post("/skipd/v1/tokenize", json!({"text": MARK}).to_string()).unwrap().expect(200).unwrap();
    http.post(TEXT, format!("{{{MARK}")).unwrap().expect(400).unwrap();
    let connection = zbus::connection::Builder::address(daemon.bus().address().as_str()).build().await.unwrap();
    let manager = Proxy::new(&connection, "org.skipd.Skipd1", "/org/skipd/Skipd1", "org.skipd.Skipd1.Manager").await.unwrap();
    let options = HashMap::from([("max_tokens", Variant::U32(4)), ("handle_token", Variant::from("mine"))]);
    let (path, stream): (OwnedObjectPath, StreamFd) = manager.call("Generate", &(prompt.as_str(), options)).await.unwrap();
    File::from(OwnedFd::from(stream)).read_to_string(&mut answer).unwrap();

    let log = daemon.log();
    let path = path.as_str().trim_start_matches("/org/skipd/Skipd1/request/");
    for name in ["robot-7", path] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&format!("id=\"{name}\""))).collect();
        let ended = lines.iter().filter(|line| line.contains("ended") && line.contains("completion_tokens")).count();
        assert_eq!(ended, 1, "one line tells of the end of {name}: {lines:?}\n{log}");
    }
    assert!(log.contains("DEBUG"), "the log tells more than usual");
    for word in [MARK, &said] {
        let told: Vec<&str> = log.lines().filter(|line| line.contains(word)).collect();
        assert!(told.is_empty(), "the log says {word:?}: {told:?}");
    }
}

#[test]
fn top_shows_the_requests_under_way_over_socket_and_bus() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true, "skipd": {"priority": "background"}});
    let mut streaming = named(&daemon, "robot-7", &body.to_string());
    let mut seen = String::new();
    while seen.matches("data: ").count() < 3 {
        let mut piece = [0; 1024];
        let read = streaming.read(&mut piece).unwrap();
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    let shown = daemon.skipctl(&["top", "--once"]).unwrap().ok().unwrap();
    let row = shown.lines().find(|line| line.starts_with("robot-7")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.contains("background") && row.contains("decode") && row.contains("/4000"), "{shown}");
    assert!(shown.contains("1 running") && shown.contains("MiB"), "{shown}");
    let address = daemon.bus().address();
    let binary = skip_tests::process::binary("skipctl").unwrap();
    let on_bus =
        skip_tests::process::run(std::process::Command::new(binary).args(["--bus", &address, "top", "--json"])).unwrap().ok().unwrap();
    let look: Value = serde_json::from_str(&on_bus).unwrap();
    let request = &look["activity"]["requests"][0];
    assert_eq!((&request["id"], &request["state"]), (&json!("robot-7"), &json!("decode")), "{look}");
    assert!(request["tokens_per_second"].as_f64().unwrap() > 0.0 && look["status"]["state"] == "ready", "{look}");
}

//! D-Bus on a real dbus-daemon: introspection and calls by busctl and gdbus, streams by file descriptor, cancellation.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde_json::{Value, json};
use skip_tests::Daemon;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;

use zbus::{Connection, OwnedFd as StreamFd, OwnedObjectPath, OwnedVariant, Proxy, Variant};

const NAME: &str = "org.skipd.Skipd1";
const OBJECT: &str = "/org/skipd/Skipd1";

async fn connect() -> Connection {
    zbus::connection::Builder::address(Daemon::shared().bus().address().as_str()).build().await.unwrap()
}

async fn manager(connection: &Connection) -> Proxy<'_> {
    Proxy::new(connection, NAME, OBJECT, "org.skipd.Skipd1.Manager").await.unwrap()
}

fn options(max_tokens: u32) -> HashMap<&'static str, Variant<'static>> {
    HashMap::from([("max_tokens", Variant::U32(max_tokens)), ("temperature", Variant::F64(0.0))])
}

/// All events of a stream; the last must be the terminal one, and there must be no other.
async fn events(stream: StreamFd) -> Vec<Value> {
    let lines = tokio::task::spawn_blocking(move || {
        let file = File::from(OwnedFd::from(stream));
        BufReader::new(file).lines().collect::<Result<Vec<_>, _>>().unwrap()
    });
    let events: Vec<Value> = lines.await.unwrap().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, rest) = events.split_last().expect("at least the terminal event");
    assert_eq!(last["event"], "finished", "{last}");
    assert!(rest.iter().all(|e| e["event"] == "text"), "{rest:?}");
    events
}

fn spoken(events: &[Value]) -> String {
    events.iter().filter_map(|e| e["text"].as_str()).collect()
}

#[test]
fn busctl_and_gdbus_see_what_the_daemon_is() {
    let bus = Daemon::shared().bus();
    let tree = bus.busctl(&["introspect", NAME, OBJECT]).unwrap().ok().unwrap();
    for member in [
        ".Generate",
        ".GenerateFd",
        ".Chat",
        ".Tokenize",
        ".Drain",
        ".SetTable",
        ".Confirm",
        ".Revert",
        ".Show",
        ".Reload",
        ".State",
        ".ContextLength",
    ] {
        assert!(tree.lines().any(|l| l.starts_with(member)), "{member} in\n{tree}");
    }
    let state = bus.busctl(&["get-property", NAME, OBJECT, "org.skipd.Skipd1.Manager", "State"]).unwrap().ok().unwrap();
    assert_eq!(state.trim(), r#"s "ready""#);
    let context = bus.busctl(&["get-property", NAME, OBJECT, "org.skipd.Skipd1.Manager", "ContextLength"]).unwrap().ok().unwrap();
    assert_eq!(context.trim(), "u 8192");
    let ids = bus
        .gdbus("call", &["--dest", NAME, "--object-path", OBJECT, "--method", "org.skipd.Skipd1.Manager.Tokenize", "Hello world"])
        .unwrap()
        .ok()
        .unwrap();
    assert!(ids.contains("uint32"), "{ids}");
    let xml = bus.gdbus("introspect", &["--xml", "--dest", NAME, "--object-path", OBJECT]).unwrap().ok().unwrap();
    assert!(xml.contains("org.skipd.Skipd1.Tables") && xml.contains("MeasuredSparsity"), "{xml}");
}

#[test]
fn busctl_starts_a_generation() {
    let bus = Daemon::shared().bus();
    let reply = bus
        .busctl(&["call", NAME, OBJECT, "org.skipd.Skipd1.Manager", "Generate", "sa{sv}", "Hello", "1", "max_tokens", "u", "2"])
        .unwrap()
        .ok()
        .unwrap();
    assert!(reply.starts_with("oh \"/org/skipd/Skipd1/request/"), "{reply}");
}

#[tokio::test]
async fn the_stream_says_what_the_socket_says() {
    let connection = connect().await;
    let prompt = "The robot arm stopped because";
    let (path, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("Generate", &(prompt, options(16))).await.unwrap();
    assert!(path.as_str().starts_with("/org/skipd/Skipd1/request/"), "{path:?}");
    let events = events(stream).await;
    let answer = Daemon::shared()
        .http()
        .post("/v1/completions", json!({"prompt": prompt, "max_tokens": 16, "temperature": 0}).to_string())
        .unwrap()
        .expect(200)
        .unwrap();
    assert_eq!(spoken(&events), crate::text(&answer));
    let last = events.last().unwrap();
    assert_eq!((&last["reason"], &last["usage"]["completion_tokens"]), (&json!("length"), &json!(16)));
    assert_eq!(last["usage"]["skipd"]["prefill"]["votes"], 0);
}

#[tokio::test]
async fn a_chat_goes_over_the_bus() {
    let connection = connect().await;
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]).to_string();
    let (_, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("Chat", &(messages, options(30))).await.unwrap();
    assert!(spoken(&events(stream).await).contains("Paris"));
}

#[tokio::test]
async fn a_long_prompt_comes_by_sealed_memfd() {
    let connection = connect().await;
    let memfd = memfd_create("prompt", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memfd);
    file.write_all(crate::prose(600).as_bytes()).unwrap();
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let prompt = zbus::Fd::from(OwnedFd::from(file));
    let (_, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("GenerateFd", &(prompt, options(3))).await.unwrap();
    let last = events(stream).await.pop().unwrap();
    assert!(last["usage"]["prompt_tokens"].as_u64().unwrap() > 400, "{last}");
    assert_eq!(last["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_refused_wherever_they_come_in() {
    let daemon = Daemon::shared();
    let connection = connect().await;
    let mut file = File::from(memfd_create("prompt", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap());
    file.write_all(b"ab\xff").unwrap();
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let prompt = zbus::Fd::from(OwnedFd::from(file));
    let refused = manager(&connection).await.call::<_, _, (OwnedObjectPath, StreamFd)>("GenerateFd", &(prompt, options(3))).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("InvalidRequest") && refused.contains("not UTF-8 from byte 2 on"), "{refused}");
    // A string of the bus cannot hold them (the bus itself turns such a message away), but JSON in it can spell half a character.
    let half = r#"[{"role": "user", "content": "\ud800"}]"#;
    let output = daemon.bus().busctl(&["call", NAME, OBJECT, "org.skipd.Skipd1.Manager", "Chat", "sa{sv}", half, "0"]).unwrap();
    assert!(output.code != Some(0) && output.stderr.contains("messages"), "{output:?}");
    daemon.assert_alive().unwrap();
}

#[tokio::test]
async fn close_ends_a_request_and_the_signal_comes() {
    let connection = connect().await;
    // Portal rules: the path is known beforehand, so the signal cannot be missed.
    let sender = connection.unique_name().unwrap().trim_start_matches(':').replace('.', "_");
    let path = format!("/org/skipd/Skipd1/request/{sender}/mine");
    let request = Proxy::new(&connection, NAME, path.as_str(), "org.skipd.Skipd1.Request").await.unwrap();
    let mut finished = request.receive_signal("Finished").await.unwrap();
    let mut with = options(2000);
    with.insert("ignore_eos", Variant::Bool(true));
    with.insert("handle_token", Variant::from("mine"));
    let (given, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("Generate", &("Hello", with)).await.unwrap();
    assert_eq!(given.as_str(), path);
    request.call::<_, _, ()>("Close", &()).await.unwrap();
    let events = events(stream).await;
    let last = events.last().unwrap();
    assert_eq!(last["reason"], "cancelled");
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() < 2000);
    let signal = futures_util::StreamExt::next(&mut finished).await.unwrap();
    let (reason, usage): (String, HashMap<String, OwnedVariant>) = signal.body().deserialize().unwrap();
    assert_eq!(reason, "cancelled");
    assert!(usage.contains_key("completion_tokens"), "{usage:?}");
}

#[tokio::test]
async fn a_caller_that_leaves_the_bus_is_cancelled() {
    let daemon = Daemon::shared();
    let connection = connect().await;
    let mut with = options(4000);
    with.insert("ignore_eos", Variant::Bool(true));
    let (_, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("Generate", &("Hello", with)).await.unwrap();
    connection.close().await.unwrap();
    let last = events(stream).await.pop().unwrap();
    assert_eq!(last["reason"], "cancelled", "the owner of the request is gone");
    daemon.assert_alive().unwrap();
}

#[tokio::test]
async fn a_stream_nobody_reads_any_more_is_cancelled() {
    let daemon = Daemon::shared();
    let connection = connect().await;
    let mut with = options(4000);
    with.insert("ignore_eos", Variant::Bool(true));
    with.insert("handle_token", Variant::from("hangup"));
    let sender = connection.unique_name().unwrap().trim_start_matches(':').replace('.', "_");
    let path = format!("/org/skipd/Skipd1/request/{sender}/hangup");
    let request = Proxy::new(&connection, NAME, path.as_str(), "org.skipd.Skipd1.Request").await.unwrap();
    let mut finished = request.receive_signal("Finished").await.unwrap();
    let (_, stream): (OwnedObjectPath, StreamFd) = manager(&connection).await.call("Generate", &("Hello", with)).await.unwrap();
    drop(stream);
    let signal = futures_util::StreamExt::next(&mut finished).await.unwrap();
    let (reason, _): (String, HashMap<String, OwnedVariant>) = signal.body().deserialize().unwrap();
    assert_eq!(reason, "cancelled");
    daemon.assert_alive().unwrap();
}

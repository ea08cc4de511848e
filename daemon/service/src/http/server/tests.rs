//! The server over real sockets: who leaves, who stalls, and how a stop reaches those who wait.

use super::*;
use crate::http::router;
use crate::testing;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

#[test]
fn one_user_cannot_take_every_seat() {
    let seats = Seats::new(8);
    let mine: Vec<_> = (0..2).map(|_| seats.take(1000, false).expect("room")).collect();
    assert!(seats.take(1000, false).is_none(), "a quarter is the limit");
    assert!(seats.take(1001, false).is_some());
    drop(mine);
    assert!(seats.take(1000, false).is_some(), "seats come back");
}

#[test]
fn administrators_are_bound_by_the_total_alone() {
    let seats = Seats::new(3);
    let all: Vec<_> = (0..3).map(|_| seats.take(0, true).expect("room")).collect();
    assert!(seats.take(0, true).is_none());
    drop(all);
}

/// A daemon of the alphabet behind a socket.
struct Served {
    daemon: Arc<Daemon>,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    server: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Served {
    async fn new(step: Duration) -> Self {
        Self::within(PATIENCE, step).await
    }

    async fn within(patience: Patience, step: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let daemon = testing::daemon(step).await;
        let listener = UnixListener::bind(&socket).unwrap();
        let (stop, stopping) = watch::channel(false);
        let server = tokio::spawn(serve_within(patience, daemon.clone(), listener, None, router(daemon.clone()), stopping));
        Self { daemon, socket, stop, server, _dir: dir }
    }

    /// Sends raw bytes; the answer is up to the test.
    async fn send(&self, bytes: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    async fn completion(&self, body: &Value) -> UnixStream {
        let body = body.to_string();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: whatever\r\ncontent-length: {}\r\n\r\n", body.len());
        self.send(format!("{head}{body}").as_bytes()).await
    }

    async fn wait_for_running(&self, wanted: u32) {
        let engine = &self.daemon.model().unwrap().engine;
        let begin = Instant::now();
        while engine.status().running != wanted {
            assert!(begin.elapsed() < Duration::from_secs(5), "{} requests run, not {wanted}", engine.status().running);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn read_to_end(mut stream: UnixStream) -> String {
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await.expect("the connection ends").unwrap();
    text
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_engine_whether_it_streamed_or_not() {
    let served = Served::new(Duration::from_millis(2)).await;
    for stream in [true, false] {
        let connection = served.completion(&json!({"prompt": "x", "max_tokens": 4000, "stream": stream})).await;
        served.wait_for_running(1).await;
        drop(connection);
        served.wait_for_running(0).await;
    }
}

#[tokio::test]
async fn a_stop_tells_streams_and_waiting_answers_and_closes_idle_connections() {
    let served = Served::new(Duration::from_millis(2)).await;
    let streamed = served.completion(&json!({"prompt": "x", "max_tokens": 1500, "stream": true})).await;
    let whole = served.completion(&json!({"prompt": "x", "max_tokens": 1500})).await;
    let idle = served.send(b"").await;
    served.wait_for_running(2).await;
    served.stop.send_replace(true);
    served.daemon.model().unwrap().engine.shutdown();
    let streamed = read_to_end(streamed).await;
    assert_eq!(streamed.matches("\"code\":\"shutdown\"").count(), 1, "{streamed}");
    assert!(!streamed.contains("[DONE]"));
    assert!(read_to_end(whole).await.starts_with("HTTP/1.1 503"));
    assert_eq!(read_to_end(idle).await, "");
    tokio::time::timeout(Duration::from_secs(1), served.server).await.expect("all connections have ended").unwrap();
}

#[tokio::test]
async fn a_stop_waits_for_no_sender() {
    let served = Served::new(Duration::ZERO).await;
    let mut waiting = vec![
        served.send(b"").await,
        served.send(b"POST /v1/completions HTT").await,
        served.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{\"prompt\"").await,
    ];
    // A connection that has had an answer and is silent, and one that has begun its next request.
    for rest in ["", "GET /hea"] {
        let mut kept = served.send(b"GET /health HTTP/1.1\r\n\r\n").await;
        let mut answer = [0; 512];
        let read = kept.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
        kept.write_all(rest.as_bytes()).await.unwrap();
        waiting.push(kept);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let told = Instant::now();
    served.stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(5), served.server).await.expect("all connections have ended").unwrap();
    assert!(told.elapsed() < ARRIVAL * 3, "{:?}", told.elapsed());
    for connection in waiting {
        assert_eq!(read_to_end(connection).await, "");
    }
}

#[tokio::test]
async fn half_a_request_costs_nothing_and_harms_nobody() {
    let served = Served::new(Duration::ZERO).await;
    let half_head = served.send(b"POST /v1/completions HTT").await;
    let half_body = served.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{\"prompt\"").await;
    drop(half_head);
    drop(half_body);
    let garbage = served.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await;
    assert!(read_to_end(garbage).await.starts_with("HTTP/1.1 400"));
    let health = served.send(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(read_to_end(health).await.starts_with("HTTP/1.1 200"), "no Host is fine, and the daemon lives");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_told() {
    let served = Served::new(Duration::ZERO).await;
    let mut held = Vec::new();
    for _ in 0..served.daemon.config.max_connections {
        held.push(served.send(b"").await);
    }
    // One that says what it wants before it listens sees the answer, no reset.
    let wanted = format!("POST /v1/completions HTTP/1.1\r\ncontent-length: 60000\r\n\r\n{}", "x".repeat(60_000));
    for wanted in ["", "GET /health HTTP/1.1\r\n\r\n", &wanted] {
        let extra = served.send(wanted.as_bytes()).await;
        let answer = read_to_end(extra).await;
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("too many connections"), "{answer}");
        assert!(answer.contains("\r\nx-request-id: ") && answer.split("\r\n\r\n").count() == 2, "{answer}");
    }
    drop(held);
}

const KEY: &str = "a-key-for-a-test-0123";

/// The same daemon over TCP as well; gives its port.
async fn over_tcp() -> (Served, u16) {
    over_tcp_within(PATIENCE).await
}

async fn over_tcp_within(patience: Patience) -> (Served, u16) {
    let mut served = Served::new(Duration::ZERO).await;
    served.server.abort();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tcp = Tcp::new(listener, crate::config::Key::parse(KEY).unwrap());
    let socket = UnixListener::bind(served.socket.with_extension("again")).unwrap();
    let daemon = served.daemon.clone();
    served.server = tokio::spawn(serve_within(patience, daemon.clone(), socket, Some(tcp), router(daemon), served.stop.subscribe()));
    (served, port)
}

/// The whole answer to one request over TCP.
async fn ask(port: u16, request: &str, authorization: &str, body: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\ncontent-length: {length}\r\n{authorization}\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await.expect("an answer").unwrap();
    text
}

#[tokio::test]
async fn over_tcp_the_key_lets_generate_and_control_nothing() {
    let (served, port) = over_tcp().await;
    let key = format!("authorization: Bearer {KEY}\r\n");
    let answer = ask(port, "POST /v1/completions", &key, r#"{"prompt": "x", "max_tokens": 2}"#).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for (request, body) in [
        ("PUT /skipd/v1/tables/prefill", r#"{"selector": "none"}"#),
        ("POST /skipd/v1/tables/reload", ""),
        ("POST /skipd/v1/drain", ""),
        ("POST /skipd/v1/jobs", r#"{"kind": "qualify"}"#),
        ("POST /v1/completions", r#"{"prompt": "x", "max_tokens": 2, "skipd": {"priority": "control"}}"#),
        ("POST /v1/completions", r#"{"prompt": "x", "max_tokens": 2, "skipd": {"tables": {"prefill": "none"}}}"#),
    ] {
        let answer = ask(port, request, &key, body).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("access_denied"), "{request}: {answer}");
    }
    assert!(served.daemon.life.stage().state() == skip_client::protocol::State::Ready);
}

#[tokio::test]
async fn over_tcp_nothing_is_answered_without_the_key() {
    let (served, port) = over_tcp().await;
    for authorization in ["", "authorization: Bearer a-key-for-a-test-0124\r\n", "authorization: Basic eDp5\r\n"] {
        for request in ["GET /health", "GET /v1/models", "POST /v1/completions", "GET /nowhere"] {
            let answer = ask(port, request, authorization, "").await;
            assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("invalid_api_key"), "{request}: {answer}");
            assert!(answer.contains("www-authenticate: Bearer") && !answer.contains(KEY), "{answer}");
            assert!(answer.contains("\r\nx-request-id: "), "{answer}");
        }
    }
    served.stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(5), served.server).await.expect("both doors close").unwrap();
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

/// Sends over TCP; gives all that comes until the connection ends.
async fn until_closed(port: u16, bytes: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await.expect("the connection ends").unwrap();
    text
}

#[tokio::test]
async fn who_does_not_show_the_key_soon_holds_no_place() {
    let (_served, port) = over_tcp_within(Patience { stranger: Duration::from_millis(100), ..PATIENCE }).await;
    let get = |header: &str| format!("GET /health HTTP/1.1\r\n{header}x-request-id: mine\r\n\r\n");
    // One that has shown it stays, however silent then.
    let mut known = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let right = get(&format!("host: localhost\r\nauthorization: Bearer {KEY}\r\n"));
    let mut answer = [0; 512];
    known.write_all(right.as_bytes()).await.unwrap();
    assert!(known.read(&mut answer).await.unwrap() > 0);
    // One at a time: there are two places.
    for silent in ["", "GET /health HTTP/1.1\r\nhost: loc"] {
        assert_eq!(until_closed(port, silent).await, "");
    }
    // Refused ones end with the refusal, whatever follows, and have their names.
    for (refused, status) in [(get("host: localhost\r\n"), 401), (get(&format!("host: evil\r\nauthorization: Bearer {KEY}\r\n")), 403)] {
        let told = until_closed(port, &format!("{refused}{right}")).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")) && told.matches("HTTP/1.1").count() == 1, "{told}");
        assert!(told.contains("connection: close") && told.contains("x-request-id: mine"), "{told}");
    }
    known.write_all(right.as_bytes()).await.unwrap();
    let read = known.read(&mut answer).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
}

/// Tasks of this runtime: the test's own, the server's, the model's.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn eventually(what: &str, probe: impl Fn() -> bool) {
    let begin = Instant::now();
    while !probe() {
        assert!(begin.elapsed() < Duration::from_secs(10), "not soon: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A stream of megabytes: twenty log-probabilities a token.
fn wide() -> Value {
    json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "logprobs": 20, "stream": true})
}

#[tokio::test]
async fn a_reader_that_never_reads_costs_bounded_memory_and_then_its_own_request() {
    let served = Served::new(Duration::ZERO).await;
    let lazy = served.completion(&wide()).await;
    let engine = served.daemon.model().unwrap().engine.clone();
    eventually("it loses its request", || engine.status().finished(skip_engine::handle::FinishReason::SlowReader) == 1).await;
    // Others are served while its answer lies there.
    let other = served.completion(&json!({"prompt": "xy", "max_tokens": 5, "stream": true})).await;
    assert!(read_to_end_of(other).await.contains("[DONE]"));
    // What was on its way is still there for one who wakes up, and then the one end.
    let text = read_to_end_of(lazy).await;
    assert_eq!(text.matches("\"code\":\"slow_reader\"").count(), 1, "{}", &text[text.len().saturating_sub(2000)..]);
    assert!(!text.contains("[DONE]") && text.len() < 2 << 20, "{} bytes were kept", text.len());
}

#[tokio::test]
async fn a_reader_that_never_wakes_up_loses_its_connection() {
    let served = Served::within(Patience { stall: Duration::from_millis(100), ..PATIENCE }, Duration::ZERO).await;
    let before = tasks();
    // Answers of megabytes, more than the socket holds.
    let sleeper = served.send("GET /metrics HTTP/1.1\r\n\r\n".repeat(500).as_bytes()).await;
    eventually("it is let in", || tasks() > before).await;
    eventually("it is put out", || tasks() <= before).await;
    // What the socket held is there, and cut off.
    let mut held = Vec::new();
    let mut sleeper = sleeper;
    // The end is a reset: what was asked for was not all read.
    let _ = sleeper.read_to_end(&mut held).await;
    assert!(held.starts_with(b"HTTP/1.1 200") && held.len() < 2 << 20, "{} bytes", held.len());
}

/// A connection over a pipe of a few bytes with a stream under way whose reader takes nothing.
async fn stalled(grace: Duration) -> (Arc<Daemon>, tokio::io::DuplexStream, tokio::task::JoinHandle<()>) {
    let daemon = testing::daemon(Duration::from_millis(2)).await;
    let patience = Patience { stall: Duration::from_millis(50), grace, ..PATIENCE };
    let (ours, mut theirs) = tokio::io::duplex(64);
    let seat = Seats::new(4).take(0, true).unwrap();
    let router = router(daemon.clone());
    let serving = tokio::spawn(async move {
        let (_sender, stop) = watch::channel(false);
        connection(patience, ours, testing::myself(), None, router, stop, seat).await;
    });
    let body = json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": true}).to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    theirs.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let engine = daemon.model().unwrap().engine.clone();
    eventually("its request ends", || engine.status().finished(skip_engine::handle::FinishReason::Cancelled) == 1).await;
    (daemon, theirs, serving)
}

fn ended(daemon: &Daemon, reason: &str) -> bool {
    let scrape = crate::metrics::render(daemon).unwrap();
    scrape.contains(&format!("finished_reason=\"{reason}\"}} 1\n"))
}

#[tokio::test]
async fn a_reader_that_sleeps_is_told_so_when_it_comes_back() {
    let (daemon, mut reader, serving) = stalled(Duration::from_secs(10)).await;
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(5), reader.read_to_string(&mut text)).await.expect("an end").unwrap();
    assert!(text.ends_with("\r\n0\r\n\r\n") && !text.contains("[DONE]"), "{text}");
    assert_eq!(text.matches("\"code\":\"slow_reader\"").count(), 1, "{text}");
    serving.await.unwrap();
    assert!(ended(&daemon, "slow_reader"));
}

#[tokio::test]
async fn one_that_does_not_come_back_is_cut_off_and_counted_as_slow() {
    let (daemon, mut reader, serving) = stalled(Duration::from_millis(20)).await;
    serving.await.unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("\r\n0\r\n"), "{text}");
    eventually("its request is on record", || ended(&daemon, "slow_reader")).await;
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_as_vllm_does() {
    let served = Served::new(Duration::from_millis(2)).await;
    let connection = served.completion(&json!({"prompt": "x", "max_tokens": 4000, "stream": true})).await;
    served.wait_for_running(1).await;
    drop(connection);
    eventually("its request is on record", || ended(&served.daemon, "abort")).await;
}

/// Reads an answer to the chunk that ends it.
async fn read_to_end_of(mut stream: UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    while !bytes.ends_with(b"\r\n0\r\n\r\n") {
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut piece)).await.expect("it goes on").unwrap();
        assert!(read > 0, "cut off: {}", String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(300)..]));
        bytes.extend_from_slice(&piece[..read]);
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_head_that_does_not_come_is_not_waited_for() {
    let served = Served::within(Patience { head: Duration::from_millis(50), ..PATIENCE }, Duration::ZERO).await;
    let before = tasks();
    let slow = [served.send(b"").await, served.send(b"POST /v1/completions HTT").await];
    for connection in slow {
        read_to_end(connection).await;
    }
    eventually("both connections are closed", || tasks() <= before).await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_without_being_waited_for() {
    let served = Served::new(Duration::ZERO).await;
    let long = "x".repeat(64 << 10);
    for (request, status) in [
        (format!("GET /health HTTP/1.1\r\nx-long: {long}\r\n\r\n"), 431),
        (format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000)), 431),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        ("POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: 1000000000000\r\n\r\n{".to_owned(), 413),
        ("POST /v1/completions HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n{".to_owned(), 400),
    ] {
        let mut connection = UnixStream::connect(&served.socket).await.unwrap();
        // The server may have heard enough before all is sent.
        let _ = connection.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), connection.read_to_end(&mut answer)).await.expect("an end");
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        assert!(shown.starts_with(&format!("HTTP/1.1 {status}")), "{read:?}: {shown:?} to {:?}", &request[..request.len().min(60)]);
    }
    let health = served.send(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(read_to_end(health).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_thousand_that_come_and_go_leave_no_task_no_request_and_no_seat() {
    let served = Served::new(Duration::ZERO).await;
    let before = tasks();
    let streamed = json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    for turn in 0..1000 {
        match turn % 5 {
            0 => drop(served.send(b"").await),
            1 => drop(served.send(b"POST /v1/completions HTT").await),
            2 => drop(served.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{\"prompt\"").await),
            3 => drop(served.completion(&streamed).await),
            _ => {
                // In the middle of its answer, or told that there is no room.
                let mut connection = served.completion(&streamed).await;
                assert!(connection.read(&mut [0; 256]).await.unwrap() > 0);
            }
        }
    }
    served.wait_for_running(0).await;
    let engine = &served.daemon.model().unwrap().engine;
    eventually("nothing is left", || tasks() <= before && served.daemon.names.count() == 0 && engine.status().queued == 0).await;
    assert_eq!(engine.status().pages_used, 0);
    // Those behind which this one waits to be let in are in and out by then.
    let health = served.send(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(read_to_end(health).await.starts_with("HTTP/1.1 200"), "there is room");
    eventually("nothing is left", || tasks() <= before && served.daemon.names.count() == 0).await;
}

//! A daemon made of canned bytes: it records each request and writes the pieces it was given.
#![expect(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file takes what it needs")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A chat of two pieces.
pub const HELLO: &[&str] = &[
    r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
    "[DONE]",
];

/// A fake daemon; its socket goes with it.
pub struct Fake {
    dir: tempfile::TempDir,
    requests: Arc<Mutex<Vec<String>>>,
    closed: Arc<tokio::sync::Notify>,
    serving: tokio::task::JoinHandle<()>,
}

/// What to answer, piece by piece, and whether to hold the connection open afterwards.
#[derive(Clone)]
pub struct Script {
    /// Written in order, with a pause between them.
    pub pieces: Vec<Vec<u8>>,
    /// Wait for the client to go instead of closing.
    pub hold: bool,
}

impl Script {
    /// One JSON answer.
    pub fn json(status: u16, body: &str) -> Self {
        Self::one(format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    }

    /// A stream of server-sent events, one chunk each.
    pub fn sse(events: &[&str]) -> Self {
        let mut pieces = vec![b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()];
        for event in events {
            let data = format!("data: {event}\n\n");
            pieces.push(format!("{:x}\r\n{data}\r\n", data.len()).into_bytes());
        }
        pieces.push(b"0\r\n\r\n".to_vec());
        Self { pieces, hold: false }
    }

    /// Bytes as they are.
    pub fn one(bytes: impl Into<Vec<u8>>) -> Self {
        Self { pieces: vec![bytes.into()], hold: false }
    }

    /// The first pieces only, and then nothing until the client goes.
    pub fn held_after(mut self, pieces: usize) -> Self {
        self.pieces.truncate(pieces);
        self.hold = true;
        self
    }
}

impl Fake {
    /// Answers the n-th request with the n-th script (the last one again and again).
    pub fn start(scripts: Vec<Script>) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), scripts)
    }

    /// The same in the folder that an earlier one left.
    pub fn start_at(dir: tempfile::TempDir, scripts: Vec<Script>) -> Self {
        let listener = UnixListener::bind(dir.path().join("skipd.sock")).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(tokio::sync::Notify::new());
        let (seen, gone) = (requests.clone(), closed.clone());
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (scripts, seen, gone) = (scripts.clone(), seen.clone(), gone.clone());
                connections.spawn(async move { serve(stream, &scripts, &seen, &gone).await });
            }
        });
        Self { dir, requests, closed, serving }
    }

    /// Ends as a killed daemon does: connections break, and the socket stays behind until somebody takes its place.
    pub async fn stop(self) -> tempfile::TempDir {
        self.serving.abort();
        let _ = self.serving.await;
        let left = self.dir.path().join("skipd.sock");
        drop(UnixStream::connect(&left).await.expect_err("nobody listens"));
        std::fs::remove_file(left).unwrap();
        self.dir
    }

    /// The socket.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("skipd.sock")
    }

    /// Heads and bodies received.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The JSON body of a request.
    pub fn body(&self, index: usize) -> serde_json::Value {
        let requests = self.requests();
        serde_json::from_str(requests[index].split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Waits until a client has gone from a held connection.
    pub async fn client_gone(&self) {
        tokio::time::timeout(Duration::from_secs(5), self.closed.notified()).await.expect("the client keeps the connection");
    }
}

async fn serve(mut stream: UnixStream, scripts: &[Script], seen: &Mutex<Vec<String>>, gone: &tokio::sync::Notify) {
    let Some(request) = read_request(&mut stream).await else { return };
    let index = {
        let mut seen = seen.lock().unwrap();
        seen.push(request);
        seen.len() - 1
    };
    let script = &scripts[index.min(scripts.len() - 1)];
    for piece in &script.pieces {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    if script.hold {
        let mut byte = [0];
        while !matches!(stream.read(&mut byte).await, Ok(0) | Err(_)) {}
        gone.notify_one();
    }
}

/// A whole request, or None where the client only looked whether somebody listens.
async fn read_request(stream: &mut UnixStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let n = stream.read(&mut buffer).await.ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

/// A client of the fake.
pub async fn client(path: &Path) -> skip_client::Client {
    skip_client::Client::connect_socket(path).await.unwrap()
}

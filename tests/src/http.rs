//! HTTP on the socket by a foreign client: `curl --unix-socket`.

use crate::process::run;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Http {
    socket: PathBuf,
    /// Whose requests: user and group; None: the test's own.
    user: Option<(u32, u32)>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Header lines, lower-case names.
    pub headers: Vec<(String, String)>,
    /// Body text.
    pub body: String,
}

impl Http {
    /// Requests to this socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, user: None }
    }

    /// The same of another user; only root can be one.
    pub fn of_user(self, uid: u32, gid: u32) -> Self {
        Self { user: Some((uid, gid)), ..self }
    }

    /// GET.
    ///
    /// # Errors
    /// No answer.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.curl(path, &[])
    }

    /// POST with a JSON body (as text, so that a test can send what is no JSON).
    ///
    /// # Errors
    /// No answer.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Result<Response> {
        self.send("POST", path, body.as_ref())
    }

    /// PUT.
    ///
    /// # Errors
    /// No answer.
    pub fn put(&self, path: &str, body: impl AsRef<[u8]>) -> Result<Response> {
        self.send("PUT", path, body.as_ref())
    }

    /// DELETE.
    ///
    /// # Errors
    /// No answer.
    pub fn delete(&self, path: &str) -> Result<Response> {
        self.curl(path, &["-X", "DELETE"])
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> Result<Response> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(body)?;
        // Another user reads it too.
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        let data = format!("@{}", file.path().display());
        self.curl(path, &["-X", method, "-H", "content-type: application/json", "--data-binary", &data])
    }

    fn curl(&self, path: &str, args: &[&str]) -> Result<Response> {
        let url = format!("http://localhost{path}");
        let mut command = match self.user {
            None => Command::new("curl"),
            Some((uid, gid)) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups", "curl"]);
                command
            }
        };
        let output =
            run(command.args(["-sS", "-i", "-N", "--max-time", "170", "--unix-socket"]).arg(&self.socket).args(args).arg(url))?.ok()?;
        // An interim answer (100 Continue, sent for large bodies) comes before the real one.
        let mut rest = output.as_str();
        loop {
            let (response, behind) = Response::read(rest)?;
            if response.status != 100 {
                return Ok(response);
            }
            rest = behind;
        }
    }

    /// Begins a request and returns its answer as it comes, line by line; dropping it hangs up.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    pub fn open(&self, path: &str, body: &str) -> Result<Stream> {
        let mut socket = UnixStream::connect(&self.socket)?;
        socket.set_read_timeout(Some(Duration::from_secs(170)))?;
        let length = body.len();
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        Ok(Stream { lines: BufReader::new(socket) })
    }
}

impl Response {
    /// A response and what is behind its head.
    fn read(text: &str) -> Result<(Self, &str)> {
        let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no header end in {text:?}"))?;
        let mut lines = head.lines();
        let status: u16 = lines.next().and_then(|l| l.split(' ').nth(1)).context("a status line")?.parse()?;
        let headers = lines.filter_map(|l| l.split_once(": ")).map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())).collect();
        Ok((Response { status, headers, body: body.to_owned() }, body))
    }

    /// The body as JSON, where the status is as expected.
    ///
    /// # Errors
    /// Another status, or no JSON.
    pub fn expect(&self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "{} instead of {status}: {}", self.status, self.body);
        serde_json::from_str(&self.body).with_context(|| self.body.clone())
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The JSON of each server-sent event; the closing `[DONE]` must be there and is left out.
    ///
    /// # Errors
    /// Another status than 200, no `[DONE]`, or an event that is no JSON.
    pub fn events(&self) -> Result<Vec<Value>> {
        ensure!(self.status == 200, "{}: {}", self.status, self.body);
        let mut data: Vec<&str> = self.body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
        ensure!(data.pop() == Some("[DONE]"), "no [DONE] at the end of {}", self.body);
        data.into_iter().map(|d| serde_json::from_str(d).with_context(|| d.to_owned())).collect()
    }
}

/// A streamed answer that is being read.
#[derive(Debug)]
pub struct Stream {
    lines: BufReader<UnixStream>,
}

impl Stream {
    /// The next server-sent event; None at `[DONE]` or the end.
    ///
    /// # Errors
    /// The connection broke, or an event is no JSON.
    pub fn event(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line)? == 0 || line.trim_end() == "data: [DONE]" {
                return Ok(None);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(Some(serde_json::from_str(data)?));
            }
        }
    }

    /// The whole answer to a request that does not stream.
    ///
    /// # Errors
    /// The connection broke, or what came is no HTTP.
    pub fn response(mut self) -> Result<Response> {
        let mut text = String::new();
        self.lines.read_to_string(&mut text)?;
        Ok(Response::read(&text)?.0)
    }

    /// All that is left.
    ///
    /// # Errors
    /// As [`Stream::event`].
    pub fn rest(mut self) -> Result<Vec<Value>> {
        std::iter::from_fn(|| self.event().transpose()).collect()
    }
}

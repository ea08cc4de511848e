//! One rendering process, seen from the daemon: started, asked, and ended when it dies, is late, or is not wanted any more.

use super::wire::{Answer, Hello, JobOf, MAX_TEXT};
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Longest line of an answer; a rendering follows it byte for byte.
const MAX_LINE: u64 = 64 << 10;

/// Why there is no text.
pub(super) enum End {
    /// The template refuses the messages, or fails on them; the process goes on.
    Refused { param: String, message: String },
    /// The process ended, or what it says is no answer.
    Gone,
    /// Nothing came in time.
    Late,
}

/// A line and the bytes behind it.
type Said = (Vec<u8>, Vec<u8>);

/// A process; killed when dropped.
#[derive(Debug)]
pub(super) struct Worker {
    process: Child,
    input: Option<ChildStdin>,
    said: Receiver<Said>,
}

impl Worker {
    /// Starts it with nothing of this process's environment.
    pub fn start(program: &Path, args: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
        // A second arena would set 64 MiB of address space aside, which is limited there.
        let mut process = command.env("MALLOC_ARENA_MAX", "1").spawn()?;
        let (send, said) = sync_channel(1);
        if let Some(out) = process.stdout.take() {
            std::thread::Builder::new().name("rendered".into()).spawn(move || {
                let mut out = BufReader::new(out);
                // Nobody waits for an answer any more once sending fails.
                while let Ok(answer) = read(&mut out) {
                    if send.send(answer).is_err() {
                        return;
                    }
                }
            })?;
        }
        let input = process.stdin.take();
        Ok(Self { process, input, said })
    }

    /// Itself, unless it has ended meanwhile.
    pub fn alive(mut self) -> Option<Self> {
        matches!(self.process.try_wait(), Ok(None)).then_some(self)
    }

    /// What it says first.
    pub fn hello(&mut self, patience: Duration) -> Result<Hello, End> {
        self.next(patience).map(|(hello, _)| hello)
    }

    /// Renders messages.
    pub fn render(&mut self, job: &JobOf<'_>, patience: Duration) -> Result<String, End> {
        let mut job = serde_json::to_vec(job).map_err(|_| End::Gone)?;
        job.push(b'\n');
        let Some(input) = &mut self.input else { return Err(End::Gone) };
        // It reads all the time, so this ends.
        input.write_all(&job).map_err(|_| End::Gone)?;
        drop(job);
        match self.next(patience)? {
            (Answer::Text { .. }, text) => String::from_utf8(text).map_err(|_| End::Gone),
            (Answer::Refused { param, message }, _) => Err(End::Refused { param, message }),
        }
    }

    fn next<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<(T, Vec<u8>), End> {
        let (line, text) = self.said.recv_timeout(patience).map_err(|error| match error {
            std::sync::mpsc::RecvTimeoutError::Timeout => End::Late,
            std::sync::mpsc::RecvTimeoutError::Disconnected => End::Gone,
        })?;
        Ok((serde_json::from_slice(&line).map_err(|_| End::Gone)?, text))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both only fail for one that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The next line and what belongs to it; an error at the end.
fn read(out: &mut BufReader<ChildStdout>) -> io::Result<Said> {
    let mut line = Vec::new();
    out.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut text = Vec::new();
    if let Ok(Answer::Text { bytes }) = serde_json::from_slice(&line) {
        if bytes > MAX_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        text.resize(bytes, 0);
        out.read_exact(&mut text)?;
    }
    Ok((line, text))
}

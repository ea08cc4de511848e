//! Watches the processes that try kernels: one that dies or is late is replaced, and the kernel it was at is refused.

use super::Progress;
use super::wire::{Job, Report};
use skip_client::protocol::{KernelVerdict, Verdict};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Longest report that is read.
const MAX_LINE: u64 = 64 << 10;
/// How long a process that is not wanted any more is waited for.
const LAST: Duration = Duration::from_secs(1);
/// Between two looks at whether the trial is still wanted.
const LOOK: Duration = Duration::from_millis(100);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Opening the device and loading the kernel files.
    pub open: Duration,
    /// One kernel on its case, the reference included.
    pub case: Duration,
    /// Ending, once killed: the driver has to take the device back.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { open: Duration::from_secs(60), case: Duration::from_secs(10), end: Duration::from_secs(20) }
    }
}

/// The program that tries kernels.
#[derive(Clone, Debug)]
pub struct Child {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Child {
    /// This program itself, also after its file was replaced.
    pub fn own() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![super::child::FLAG.into()] }
    }
}

/// Why there are no verdicts.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TryError {
    /// The child found the device or the files unusable.
    #[error("{0}")]
    Unusable(String),
    /// The child does not work, whatever kernel it is given.
    #[error("{0}")]
    Process(String),
    /// Not wanted any more.
    #[error("cancelled")]
    Cancelled,
}

/// A trial.
pub struct Trying<'a> {
    /// What runs them.
    pub child: &'a Child,
    /// How long they may take.
    pub limits: Limits,
    /// Told of every kernel before it is tried.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Asked a few times a second.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// How a child's turn ended.
enum End {
    /// All its kernels are tried.
    Complete,
    /// It is gone, or what it says is no report.
    Faulted(String),
    /// Nothing came in time.
    Late,
}

impl Trying<'_> {
    /// Tries all kernels of a job, in as many processes as that takes; one verdict a kernel, in order.
    pub fn all(mut self, job: &Job) -> Result<Vec<KernelVerdict>, TryError> {
        let mut left: VecDeque<String> = job.kernels.iter().cloned().collect();
        let mut verdicts = Vec::new();
        while !left.is_empty() {
            let before = left.len();
            let mut running = Running::start(self.child, &job.with(left.iter().cloned().collect()))?;
            let mut at = None;
            let end = self.follow(&mut running, &mut left, &mut at, &mut verdicts)?;
            let ended = running.end(self.limits.end);
            if let (End::Faulted(_), Some(signal)) = (&end, ended.and_then(from_outside)) {
                return Err(TryError::Process(format!(
                    "signal {signal} ended the process that tries them, which says nothing of a kernel"
                )));
            }
            let (verdict, reason) = match end {
                End::Complete => continue,
                End::Faulted(words) => {
                    (Verdict::Faulted, ended.map_or(words.clone(), |status| format!("{words}; the process {}", status_words(status))))
                }
                End::Late => (Verdict::Hung, format!("no end within {:?}", if at.is_some() { self.limits.case } else { self.limits.open })),
            };
            match at {
                Some(kernel) => {
                    left.pop_front();
                    verdicts.push(KernelVerdict { kernel, verdict, micros: None, reason: Some(reason) });
                }
                // A verdict that the device is lost ends a process too; one that came to nothing would come to nothing again.
                None if left.len() == before => {
                    return Err(TryError::Process(format!("opening the device and its kernel files: {reason}")));
                }
                None => {}
            }
        }
        Ok(verdicts)
    }

    /// Takes a child's reports until it ends or is late.
    fn follow(
        &mut self,
        running: &mut Running,
        left: &mut VecDeque<String>,
        at: &mut Option<String>,
        verdicts: &mut Vec<KernelVerdict>,
    ) -> Result<End, TryError> {
        let total = verdicts.len() + left.len();
        let mut deadline = Instant::now() + self.limits.open;
        while !left.is_empty() {
            let report = match self.next(running, deadline)? {
                Ok(report) => report,
                Err(end) => return Ok(end),
            };
            match report {
                Report::Opened => {}
                Report::Begun { kernel } if at.is_none() && left.front() == Some(&kernel) => {
                    (self.progress)(Progress { kernel: kernel.clone(), done: verdicts.len(), total });
                    *at = Some(kernel);
                }
                Report::Tried(verdict) if at.as_ref() == Some(&verdict.kernel) => {
                    left.pop_front();
                    *at = None;
                    let lost = verdict.verdict == Verdict::Faulted;
                    verdicts.push(verdict);
                    if lost {
                        return Ok(End::Faulted("the device is lost to it".into()));
                    }
                }
                Report::Unusable { reason } => return Err(TryError::Unusable(reason)),
                other => return Ok(End::Faulted(format!("it reported out of turn: {other:?}"))),
            }
            deadline = Instant::now() + self.limits.case;
        }
        Ok(End::Complete)
    }

    fn next(&self, running: &Running, deadline: Instant) -> Result<Result<Report, End>, TryError> {
        loop {
            if (self.cancelled)() {
                return Err(TryError::Cancelled);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match running.lines.recv_timeout(left.min(LOOK)) {
                Ok(line) => {
                    let report = serde_json::from_slice(&line);
                    let garbage = |_| End::Faulted(format!("it printed {:?}", String::from_utf8_lossy(&line[..line.len().min(60)])));
                    return Ok(report.map_err(garbage));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(End::Faulted("it ended".into()))),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(Err(End::Late)),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// A child at work; killed when dropped.
struct Running {
    process: std::process::Child,
    lines: Receiver<Vec<u8>>,
}

impl Running {
    fn start(child: &Child, job: &Job) -> Result<Self, TryError> {
        let failed = |error: std::io::Error| TryError::Process(error.to_string());
        let mut command = Command::new(&child.program);
        // A group of its own: what a terminal sends to the daemon's is not meant for it.
        command.args(&child.args).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.env_remove("NOTIFY_SOCKET").spawn().map_err(failed)?;
        let mut line = serde_json::to_vec(job).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let (send, lines) = sync_channel(16);
        if let Some(out) = process.stdout.take() {
            let mut out = BufReader::new(out);
            std::thread::spawn(move || {
                let mut line = Vec::new();
                // Nobody waits for a report any more once sending fails.
                while matches!(out.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(n) if n > 0) {
                    if send.send(std::mem::take(&mut line)).is_err() {
                        return;
                    }
                }
            });
        }
        // Held open: its closing tells the child that nobody wants an answer. A child that does not even read its job ends without a report.
        if let Some(input) = &mut process.stdin
            && let Err(error) = input.write_all(&line)
        {
            tracing::debug!(%error, "the process that tries kernels did not take its job");
        }
        Ok(Self { process, lines })
    }

    /// Ends it; how it ended, if it had before or does within `limit`.
    fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        // One that has just closed its output may be about to end by itself.
        let grace = Instant::now() + Duration::from_millis(200);
        while Instant::now() < grace {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It can only fail for one that has ended.
        let _ = self.process.kill();
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.process.try_wait() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        tracing::error!(pid = self.process.id(), "a process that tried kernels cannot be ended: the driver keeps it");
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It can only fail for one that has ended.
        let _ = self.process.kill();
        let deadline = Instant::now() + LAST;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The signal, where it is one that a kernel does not cause: an administrator's, a service manager's, or the kernel's for lack of memory.
fn from_outside(status: ExitStatus) -> Option<i32> {
    use rustix::process::Signal;
    let outside = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL];
    status.signal().filter(|&signal| outside.iter().any(|s| s.as_raw() == signal))
}

fn status_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".into(),
    }
}

#[cfg(test)]
#[path = "parent_tests.rs"]
pub(super) mod tests;

//! The process that tries kernels: `skipd --qualify-child`, for [`super::parent`] alone. It ends with its parent.

use super::wire::{Job, Report};
use skip_client::protocol::{KernelVerdict, Verdict};
use skip_kernels::cuda::qualify::{self, Trial};
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;

/// The only argument of such a process.
pub const FLAG: &str = "--qualify-child";
/// Longest job.
const MAX_JOB: u64 = 1 << 20;

/// Reads a job and tries its kernels, one report a line.
pub fn main() -> ExitCode {
    let mut line = String::new();
    let read = std::io::stdin().lock().take(MAX_JOB).read_line(&mut line);
    let job: Job = match read.map_err(serde_json::Error::io).and_then(|_| serde_json::from_str(&line)) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("skipd {FLAG}: it is started by skipd itself: {error}");
            return ExitCode::from(2);
        }
    };
    std::thread::spawn(end_with_parent);
    // A parent that does not listen any more has gone.
    match run(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The parent holds standard input open for as long as it wants an answer. A kernel that never ends keeps every other way out from working.
fn end_with_parent() {
    let mut rest = Vec::new();
    let ended = std::io::stdin().lock().take(MAX_JOB).read_to_end(&mut rest);
    if let Err(error) = ended {
        eprintln!("skipd {FLAG}: {error}");
    }
    // Killing oneself only fails where there is no such process.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

fn run(job: &Job) -> std::io::Result<()> {
    let needs = job.needs();
    let mut trial = match Trial::open(&job.options(), needs) {
        Ok(trial) => trial,
        Err(error) => return tell(&Report::Unusable { reason: error.to_string() }),
    };
    tell(&Report::Opened)?;
    for case in trial.cases().iter().filter(|case| job.kernels.is_empty() || job.kernels.contains(&case.name)) {
        tell(&Report::Begun { kernel: case.name.clone() })?;
        let verdict = match trial.run(case) {
            Ok(verdict) => verdict,
            Err(error) => return tell(&Report::Unusable { reason: error.to_string() }),
        };
        let (verdict, micros, reason) = match verdict {
            qualify::Verdict::Right(micros) => (Verdict::Right, Some(micros), None),
            qualify::Verdict::Wrong(what) => (Verdict::Wrong, None, Some(what)),
            qualify::Verdict::Faulted(fault) => (Verdict::Faulted, None, Some(fault)),
            qualify::Verdict::Absent => (Verdict::Absent, None, None),
        };
        tell(&Report::Tried(KernelVerdict { kernel: case.name.clone(), verdict, micros, reason }))?;
        if verdict == Verdict::Faulted {
            // The device refuses this process everything else, giving memory back too.
            std::mem::forget(trial);
            return Ok(());
        }
    }
    Ok(())
}

fn tell(report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    out.write_all(line.as_bytes())?;
    out.flush()
}

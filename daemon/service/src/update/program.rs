//! Running `skip-update`, which verifies bundles and changes the store: a process of its own, so that what it parses never meets the daemon's memory.

use super::text;
use crate::state::Daemon;
use serde_json::Value;
use skip_client::{Error, ErrorKind};
use skip_updates::Check;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Where packages put it.
const INSTALLED: &str = "/usr/lib/skipd/skip-update";
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the program, with an archive as its standard input; its answer.
///
/// # Errors
/// What it refused, with the check's name in `details.check`.
pub async fn run(daemon: &Daemon, arguments: &[String], archive: Option<Vec<u8>>) -> Result<Value, Error> {
    let program = find();
    let failed = |error: io::Error| Error::new(ErrorKind::Internal, format!("{}: {error}", program.display()));
    let input = match archive {
        None => Stdio::null(),
        Some(archive) => {
            tokio::task::spawn_blocking(move || memory_file(&archive)).await.map_err(io::Error::other).flatten().map_err(failed)?.into()
        }
    };
    let mut command = Command::new(&program);
    command.arg("--json").arg("--state-dir").arg(&daemon.config.state_dir).arg("--trust").arg(&daemon.config.update_trust);
    command.args(arguments).stdin(input).stdout(Stdio::piped()).stderr(Stdio::null());
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.map_err(|_| failed(io::ErrorKind::TimedOut.into()))?.map_err(failed)?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(answer);
    }
    let (check, message) = (text(&answer["error"]["check"]), text(&answer["error"]["message"]));
    Err(match Check::from_name(check) {
        Some(known) => Error::new(kind(known), format!("{check}: {message}")).with("check", check.to_owned()),
        None => Error::new(ErrorKind::Internal, format!("{} ended with {}", program.display(), output.status)),
    })
}

/// Beside this program, or where packages put it.
fn find() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("skip-update")));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| INSTALLED.into())
}

fn kind(check: Check) -> ErrorKind {
    match check {
        Check::Busy => ErrorKind::Busy,
        Check::NothingThere => ErrorKind::NothingPending,
        Check::NoSpace | Check::ReadOnly | Check::Permission | Check::Io | Check::Trust => ErrorKind::Internal,
        _ => ErrorKind::TableRefused,
    }
}

fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("skipd-bundle", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

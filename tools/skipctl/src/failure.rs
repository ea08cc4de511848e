//! Why a command failed, and the exit code that says so.

use skip_client::protocol::ErrorBody;
use skip_client::{Error, ErrorKind};
use std::io;
use std::process::ExitCode;

/// Anything that ends a command early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The daemon's or the client's error.
    #[error("{0}")]
    Client(#[from] Error),
    /// A file or the terminal; the name first.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// Arguments that clap cannot judge.
    #[error("{0}")]
    Usage(String),
    /// A table file is wrong.
    #[error("{0}")]
    Table(String),
    /// The import failed.
    #[error("{0}")]
    Import(#[from] skip_import::ImportError),
    /// Some requests of a file failed; what was answered is written.
    #[error("{failed} of {of} requests failed; the first: {first}")]
    Batch {
        /// How many.
        failed: usize,
        /// Of how many.
        of: usize,
        /// Why the first of them failed.
        first: Error,
    },
    /// `evaluate` is done, and the tables do not pass.
    #[error("{}", .0.words())]
    Verdict(Verdict),
    /// `doctor` is done, and this many checks failed.
    #[error("{0} failed; what mends it is below each")]
    Unwell(usize),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read the output has gone: a quiet end.
    #[error("the reader of the output has gone")]
    BrokenPipe,
}

/// An evaluation that is no pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The drop is beyond what is allowed.
    Fail,
    /// It may be or not.
    Inconclusive,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::Fail => "fail: the drop is beyond what is allowed",
            Verdict::Inconclusive => "inconclusive: these items cannot tell",
        }
    }
}

/// Exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done (also when the reader of the output goes away)
  1    a local file or the terminal
  2    wrong usage
  3    no skipd answers
  4    the request was refused: wrong, unsupported, or too long
  5    a table was refused, or nothing is pending; the old table stays
  6    not allowed
  7    busy, not ready, or draining: try again
  8    cut short: cancelled, deadline, slow reader, shutdown
  9    a fault of the daemon, the device or the connection
  10   evaluate: the tables fail
  11   evaluate: too few items, or too different, to tell
  12   doctor: something fails
  130  interrupted";

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Client(error) => error.kind.exit_code(),
            Failure::Batch { first, .. } => first.kind.exit_code(),
            Failure::Io(..) | Failure::Import(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Table(_) => ErrorKind::TableRefused.exit_code(),
            Failure::Verdict(Verdict::Fail) => 10,
            Failure::Verdict(Verdict::Inconclusive) => 11,
            Failure::Unwell(_) => 12,
            Failure::Interrupted => 130,
            Failure::BrokenPipe => 0,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::Io("output".into(), error),
        }
    }
}

/// Says on stderr why, as text or as OpenAI's error body.
pub fn report(failure: &Failure, json: bool) -> ExitCode {
    let text = match failure {
        Failure::Client(error) if json => serde_json::to_string(&ErrorBody::from(error.clone())).unwrap_or_default(),
        other if json => serde_json::json!({"error": {"message": other.to_string(), "type": "client_error"}}).to_string(),
        other => match hint(other) {
            Some(hint) => format!("skipctl: {other}\n{hint}"),
            None => format!("skipctl: {other}"),
        },
    };
    // Nothing is left to tell it to.
    let _ = io::Write::write_all(&mut io::stderr(), format!("{}\n", clean(&text)).as_bytes());
    ExitCode::from(failure.exit_code())
}

/// Longest message, in characters.
const LONGEST: usize = 4000;

/// A message may quote a broken file: no control character of it reaches the terminal, and no megabytes.
fn clean(text: &str) -> String {
    let mut out: String = text.chars().take(LONGEST).map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}

fn hint(failure: &Failure) -> Option<&'static str> {
    let Failure::Client(error) = failure else { return None };
    match error.kind {
        ErrorKind::Unreachable => Some("Is skipd running? Name its socket with --socket or SKIPD_SOCKET, or its bus with --bus."),
        ErrorKind::AccessDenied => Some("Generating takes membership of the group `skipd`; setting tables takes an administrator."),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_neither_drives_the_terminal_nor_floods_it() {
        assert_eq!(clean("tensor `\u{1b}[2Jé\r`: missing\nhint"), "tensor `\u{fffd}[2Jé\u{fffd}`: missing\nhint");
        assert_eq!(clean(&"x".repeat(1 << 20)).chars().count(), LONGEST + 1);
        assert_eq!(clean(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }
}

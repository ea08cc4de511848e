//! Faults of the device while serving, remembered over restarts: after a few in short order the daemon serves with what it can rely on, first
//! with portable kernels alone, and after as many faults with those without the device.

use crate::files;
use serde::{Deserialize, Serialize};
use skip_tables::replace_file;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file's form; another one is not read.
const VERSION: u32 = 1;
/// So many faults …
const REPEATED: usize = 3;
/// … within so long are too many.
const WINDOW: Duration = Duration::from_secs(600);
/// A run of this length without a fault makes up for those before.
pub const CLEAN_RUN: Duration = Duration::from_secs(600);
/// Faults that are remembered.
const KEPT: usize = 16;
/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 10;
/// Longest reason that is kept, in characters.
const MAX_REASON: usize = 400;

/// With what the daemon serves, the best first.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// Everything that is right.
    #[default]
    All,
    /// The portable kernels.
    Portable,
    /// The processor.
    Cpu,
}

/// Where the faults of late leave the daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// With what it is to serve.
    pub rung: Rung,
    /// The faults, in words; empty where there is nothing to say.
    pub why: String,
}

/// One fault.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Fault {
    unix_ms: u64,
    reason: String,
    /// What served.
    #[serde(default)]
    with: Rung,
}

/// The faults of late.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Faults {
    version: u32,
    /// The latest last.
    faults: Vec<Fault>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { version: VERSION, faults: Vec::new() }
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("faults.json")
}

impl Faults {
    /// Those of a state folder; a file that cannot be read or understood counts as none.
    pub fn read(state_dir: &Path) -> Self {
        let path = path(state_dir);
        let bytes = match files::read(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "faults of earlier runs cannot be read");
                return Self::default();
            }
        };
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(faults) if faults.version == VERSION => faults,
            _ => {
                tracing::warn!(path = %path.display(), "faults of earlier runs are not readable and are forgotten");
                Self::default()
            }
        }
    }

    /// Adds one to a state folder's; a folder that takes none leaves the next start without warning.
    pub fn record(state_dir: &Path, now: SystemTime, with: Rung, reason: &str) {
        let mut faults = Self::read(state_dir);
        faults.add(now, with, reason);
        let written = std::fs::create_dir_all(state_dir)
            .and_then(|()| Ok(serde_json::to_vec_pretty(&faults)?))
            .and_then(|text| replace_file(&path(state_dir), &text, false));
        match written {
            Ok(_) => tracing::error!(faults = faults.faults.len(), reason, "a device fault was recorded"),
            Err(error) => tracing::error!(%error, reason, "a device fault could not be recorded"),
        }
    }

    fn add(&mut self, now: SystemTime, with: Rung, reason: &str) {
        let unix_ms = now.duration_since(UNIX_EPOCH).map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        self.faults.push(Fault {
            unix_ms,
            reason: reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect(),
            with,
        });
        self.faults.drain(..self.faults.len().saturating_sub(KEPT));
    }

    /// Forgets those of a state folder, after a clean run.
    pub fn forget(state_dir: &Path) {
        match std::fs::remove_file(path(state_dir)) {
            Ok(()) => tracing::info!("faults of earlier runs are forgotten after a clean run"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "faults of earlier runs could not be forgotten"),
        }
    }

    /// What can be relied on: the rung below each on which faults came too fast after one another. How long ago does not matter: only a clean
    /// run does.
    pub fn standing(&self) -> Standing {
        let minutes = WINDOW.as_secs() / 60;
        let on = |rung, with, faults: &Fault| Standing {
            rung,
            why: format!("{REPEATED} device faults within {minutes} minutes{with}, the last: {}", faults.reason),
        };
        let portable = self.repeated(Rung::Portable).map(|last| on(Rung::Cpu, " with portable kernels alone", last));
        portable.or_else(|| self.repeated(Rung::All).map(|last| on(Rung::Portable, "", last))).unwrap_or_default()
    }

    /// The last fault with these kernels, if the last few came too fast after one another.
    fn repeated(&self, with: Rung) -> Option<&Fault> {
        let mut faults = self.faults.iter().rev().filter(|fault| fault.with == with);
        let (last, first) = (faults.next()?, faults.nth(REPEATED - 2)?);
        // A clock that was set back makes no fault older.
        let apart = Duration::from_millis(last.unix_ms.saturating_sub(first.unix_ms));
        (apart <= WINDOW).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn faults(seconds: &[u64]) -> Faults {
        let mut faults = Faults::default();
        seconds.iter().for_each(|s| faults.add(at(*s), Rung::All, "trap"));
        faults
    }

    #[test]
    fn three_faults_in_short_order_are_too_many() {
        let rung = |seconds: &[u64]| faults(seconds).standing().rung;
        assert_eq!(faults(&[]).standing(), Standing::default());
        assert_eq!(faults(&[0, 1]).standing(), Standing::default());
        assert_eq!(faults(&[0, 300, 601]).standing(), Standing::default());
        let why = "3 device faults within 10 minutes, the last: trap".to_owned();
        assert_eq!(faults(&[0, 300, 600]).standing(), Standing { rung: Rung::Portable, why });
        assert_eq!(rung(&[0, 5000, 5001, 5002]), Rung::Portable);
        assert_eq!(rung(&[900, 500, 100]), Rung::Portable, "a clock that runs backwards forgives nothing");
    }

    #[test]
    fn as_many_again_with_portable_kernels_leave_the_processor() {
        let mut faults = faults(&[0, 1, 2]);
        let mut fault = |second, with| {
            faults.add(at(second), with, "ECC");
            faults.standing()
        };
        assert_eq!(fault(3, Rung::Portable).rung, Rung::Portable);
        assert_eq!(fault(4, Rung::Portable).rung, Rung::Portable);
        assert_eq!(fault(900, Rung::Portable).rung, Rung::Portable, "not within ten minutes");
        assert_eq!(fault(901, Rung::Portable).rung, Rung::Portable);
        let down = fault(902, Rung::Portable);
        assert_eq!(
            (down.rung, down.why.as_str()),
            (Rung::Cpu, "3 device faults within 10 minutes with portable kernels alone, the last: ECC")
        );
        for second in 903..940 {
            assert_eq!(fault(second, Rung::Portable).rung, Rung::Cpu, "told to go on with CUDA, it stays there");
        }
    }

    #[test]
    fn faults_of_a_version_without_rungs_count_as_with_all_kernels() {
        let fault = r#"{"unix_ms": 5, "reason": "trap"}"#;
        let faults: Faults = serde_json::from_str(&format!(r#"{{"version": 1, "faults": [{fault}, {fault}, {fault}]}}"#)).unwrap();
        assert_eq!(faults.standing().rung, Rung::Portable);
    }

    #[test]
    fn faults_outlive_the_process_until_a_clean_run() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        for second in 0..40 {
            Faults::record(&state, at(second), Rung::All, &"x".repeat(10_000));
        }
        let read = Faults::read(&state);
        assert_eq!(read.faults.len(), KEPT);
        let why = read.standing().why;
        assert!((MAX_REASON..2 * MAX_REASON).contains(&why.len()), "{why}");
        Faults::forget(&state);
        assert_eq!(Faults::read(&state), Faults::default());
        Faults::forget(&state);
    }

    #[test]
    fn a_broken_file_counts_as_no_fault() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", r#"{"version":2,"faults":[]}"#, r#"{"version":1,"faults":[{"unix_ms":-1,"reason":""}]}"#] {
            std::fs::write(path(folder.path()), text).unwrap();
            assert_eq!(Faults::read(folder.path()), Faults::default(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), times in proptest::collection::vec(any::<u64>(), 0..6)) {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(path(folder.path()), &bytes).unwrap();
            let _ = Faults::read(folder.path()).standing();
            let faults = times.into_iter().map(|unix_ms| Fault { unix_ms, reason: String::new(), with: Rung::All }).collect();
            let _ = Faults { version: VERSION, faults }.standing();
        }
    }
}

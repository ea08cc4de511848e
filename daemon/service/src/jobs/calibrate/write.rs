//! Writes calibrated tables where the checkpoint's are read from: into its config.json, every other byte of which stays, or where that cannot be
//! written, into the state folder.

use crate::tables::Paths;
use serde_json::Value;
use skip_client::{Error, ErrorKind};
use skip_engine::calibrate::outcome::PhaseOutcome;
use skip_engine::regular;
use skip_tables::{MAX_BYTES, Phase, TableFile, replace_file, set_keys};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where tables went.
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Where the file before is kept, if there was one: beside the file that a link leads to.
    pub backup: Option<PathBuf>,
}

/// Writes the phases' keys; those of a phase that was not calibrated stay.
///
/// # Errors
/// Neither place can be written: the old file is still there, whole.
pub fn write(paths: &Paths, outcomes: &[(Phase, PhaseOutcome)]) -> Result<Written, Error> {
    let changes = changes(outcomes);
    let (config, own) = (paths.config(), paths.calibrated());
    match edit(&config, &config, &changes) {
        Ok(backup) => {
            // It would go first.
            if let Err(error) = std::fs::remove_file(&own)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(failed(&own, &error));
            }
            Ok(Written { backup, path: config })
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            let from = if own.exists() { &own } else { &config };
            let backup = own
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| edit_tables(from, &own, &changes))
                .map_err(|error| failed(&own, &error))?;
            Ok(Written { backup, path: own })
        }
        Err(error) => Err(failed(&config, &error)),
    }
}

/// Sets one key beside the tables, in the file that they are read from.
///
/// # Errors
/// It cannot be written: the old file is still there, whole.
pub fn write_key(paths: &Paths, key: &str, value: Value) -> Result<(), Error> {
    let changes = [(key.to_owned(), Some(value))];
    let own = paths.calibrated();
    let to = if own.exists() { own } else { paths.config() };
    edit(&to, &to, &changes)
        .map(drop)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("{}: {error}: {key} is not written", to.display())))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!(
            "{}: {error}: the tables are not written; what was measured is kept, and a calibration with the same options goes on from it",
            path.display()
        ),
    )
}

/// The keys of each phase; None takes one out.
fn changes(outcomes: &[(Phase, PhaseOutcome)]) -> Vec<(String, Option<Value>)> {
    let mut changes = Vec::new();
    for (phase, outcome) in outcomes {
        let mut tables = outcome.tables.clone();
        let advice = outcome.advice.as_ref().and_then(|advice| serde_json::to_value(advice).ok());
        if let (Phase::Decode, Some(record), Some(advice)) = (phase, &mut tables.record, &advice) {
            record.extra.insert("shape_advice".into(), advice.clone());
        }
        let mut file = TableFile::default();
        *file.phase_mut(*phase) = tables;
        let mut object = file.to_object();
        for key in ["scale_table", "scale_tables", "target_sparsity", "calibration"] {
            let key = format!("skip_softmax_{}_{key}", phase.name());
            let value = object.remove(&key);
            changes.push((key, value));
        }
        if *phase == Phase::Prefill {
            changes.push(("skip_softmax_prefill_shape_advice".into(), advice));
        }
    }
    changes
}

fn read(path: &Path) -> io::Result<String> {
    String::from_utf8(regular::read(path, MAX_BYTES as u64)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn edit(from: &Path, to: &Path, changes: &[(String, Option<Value>)]) -> io::Result<Option<PathBuf>> {
    let text = set_keys(&read(from)?, changes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    replace_file(to, text.as_bytes(), true)
}

/// The tables of `from` alone, changed.
fn edit_tables(from: &Path, to: &Path, changes: &[(String, Option<Value>)]) -> io::Result<Option<PathBuf>> {
    let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut file = TableFile::parse(read(from)?.as_bytes()).map_err(|error| invalid(error.to_string()))?;
    file.unread.clear();
    let text = serde_json::to_string_pretty(&Value::Object(file.to_object()))?;
    let text = set_keys(&text, changes).map_err(|error| invalid(error.to_string()))?;
    replace_file(to, format!("{}\n", text.trim_end()).as_bytes(), true)
}

/// Today in Coordinated Universal Time, ISO 8601.
pub fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The Gregorian date of a number of days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut left, mut year) = (days, 1970);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_engine::calibrate::advise::Advice;
    use skip_tables::{Deployed, PhaseTables, ScaleTable};

    fn outcomes(s: f32) -> Vec<(Phase, PhaseOutcome)> {
        let table = ScaleTable::new(vec![(4096, s).into()], None).unwrap();
        let tier = "50%".parse().unwrap();
        let tables = PhaseTables {
            deployed: Deployed::Table(table.clone()),
            ladder: [(tier, table)].into(),
            target: Some(tier),
            ..PhaseTables::default()
        };
        let advice = Advice { advice: "on", sparsity: 0.5, mass: 0.02, ratio: 0.04, mass_ratio: 0.3, layers: Vec::new() };
        vec![(Phase::Prefill, PhaseOutcome { tiers: Vec::new(), tables, advice: Some(advice) })]
    }

    fn paths(dir: &Path) -> Paths {
        std::fs::create_dir(dir.join("model")).unwrap();
        Paths { state_dir: dir.join("state"), admin: dir.join("tables.json"), checkpoint: dir.join("model") }
    }

    const CONFIG: &str =
        "{\n  \"b\": 1,\n  \"mystery\": {\"z\": [1,  2]},\n  \"skip_softmax_decode_scale_table\": [[100, 2.5]],\n  \"a\": 2\n}\n";

    #[test]
    fn keys_go_into_the_config_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        std::fs::write(paths.config(), CONFIG).unwrap();
        let written = write(&paths, &outcomes(1000.0)).unwrap();
        assert_eq!(written.path, paths.config());
        assert_eq!(std::fs::read_to_string(written.backup.unwrap()).unwrap(), CONFIG);
        let text = std::fs::read_to_string(paths.config()).unwrap();
        assert!(text.starts_with(CONFIG.trim_end().trim_end_matches('}').trim_end()), "{text}");
        let file = TableFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.prefill, outcomes(1000.0)[0].1.tables);
        assert!(file.decode.deployed.table().is_some(), "the other phase's stay");
        assert_eq!(file.shape_advice.unwrap()["advice"], "on");
        let again = write(&paths, &outcomes(2000.0)).unwrap();
        let file = TableFile::parse(&std::fs::read(paths.config()).unwrap()).unwrap();
        assert_eq!(file.prefill, outcomes(2000.0)[0].1.tables);
        assert_eq!(std::fs::read_to_string(again.backup.unwrap()).unwrap(), text, "the file before");
        let first = paths.config().with_extension("json.bak");
        assert_eq!(std::fs::read_to_string(first).unwrap(), CONFIG, "what the checkpoint came with stays");
    }

    #[test]
    fn the_backup_told_is_the_one_made_beside_what_a_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let blob = dir.path().join("4af1");
        std::fs::write(&blob, CONFIG).unwrap();
        std::os::unix::fs::symlink(&blob, paths.config()).unwrap();
        let written = write(&paths, &outcomes(1000.0)).unwrap();
        let backup = written.backup.unwrap();
        assert_eq!((backup.file_name().unwrap(), std::fs::read_to_string(&backup).unwrap()), ("4af1.bak".as_ref(), CONFIG.into()));
        assert_eq!(std::fs::read_dir(dir.path().join("model")).unwrap().count(), 1, "nothing lies beside the link");
    }

    #[test]
    fn a_config_that_is_no_json_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        std::fs::write(paths.config(), "{").unwrap();
        assert!(write(&paths, &outcomes(1000.0)).is_err());
        assert_eq!(std::fs::read_to_string(paths.config()).unwrap(), "{");
    }

    #[test]
    fn tables_alone_are_written_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        std::fs::write(paths.config(), CONFIG).unwrap();
        let to = dir.path().join("own.json");
        edit_tables(&paths.config(), &to, &changes(&outcomes(1000.0))).unwrap();
        let text = std::fs::read_to_string(to).unwrap();
        let file = TableFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.prefill, outcomes(1000.0)[0].1.tables);
        assert!(file.decode.deployed.table().is_some() && !text.contains("mystery"));
        assert_eq!(std::fs::read_to_string(paths.config()).unwrap(), CONFIG);
    }

    #[test]
    fn dates_are_the_calendar_s() {
        for (days, is) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (789, (1972, 2, 29)), (11_016, (2000, 2, 29)), (20_787, (2026, 11, 30))] {
            assert_eq!(date(days), is);
        }
    }
}

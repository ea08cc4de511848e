//! The configuration file and its drop-ins, later ones winning.

use super::{ConfigError, Settings};
use skip_client::protocol::words;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Reads `path` and the `*.toml` in the folder of the same name with `.d`, in name order. A missing `path` is an error where it was named.
pub fn read(path: &Path, named: bool) -> Result<Settings, ConfigError> {
    let mut settings = match read_one(path)? {
        Some(settings) => settings,
        None if named => {
            return Err(ConfigError::Read { path: path.to_owned(), source: ErrorKind::NotFound.into() });
        }
        None => Settings::default(),
    };
    for drop_in in drop_ins(&path.with_extension("d"))? {
        if let Some(later) = read_one(&drop_in)? {
            settings = later.over(settings);
        }
    }
    Ok(settings)
}

fn read_one(path: &Path) -> Result<Option<Settings>, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
    };
    toml::from_str(&text).map(Some).map_err(|error| {
        let message = error.to_string().trim_end().replace(error.message(), &words(&error.message()));
        ConfigError::Parse { path: path.to_owned(), message }
    })
}

fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

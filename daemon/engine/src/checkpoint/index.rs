//! `model.safetensors.index.json`: which shards there are, and that they hold what it says.

use super::CheckpointError;
use super::weights::Weights;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Longest index file that is parsed.
const MAX_INDEX: u64 = 16 << 20;
/// More shards than any checkpoint has.
const MAX_SHARDS: usize = 1024;

/// What the index says, if there is one.
pub(super) struct Index {
    path: PathBuf,
    /// Shard by tensor; None: the folder has one file.
    map: Option<HashMap<String, String>>,
}

impl Index {
    /// Reads the index of a folder.
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        #[derive(serde::Deserialize)]
        struct File {
            weight_map: HashMap<String, String>,
        }
        let path = dir.join("model.safetensors.index.json");
        if !path.exists() {
            return Ok(Self { path, map: None });
        }
        let parsed = serde_json::from_slice::<File>(&super::read_limited(&path, MAX_INDEX)?);
        let file = parsed.map_err(|e| CheckpointError::Json { path: path.clone(), detail: e.to_string() })?;
        Ok(Self { path, map: Some(file.weight_map) })
    }

    /// Names of the weight files, ascending; all are there.
    pub fn shards(&self, dir: &Path) -> Result<Vec<String>, CheckpointError> {
        let Some(map) = &self.map else {
            let single = "model.safetensors";
            let found = dir.join(single).exists();
            return if found { Ok(vec![single.to_owned()]) } else { Err(CheckpointError::NoWeights { dir: dir.to_owned() }) };
        };
        let bad = |detail: String| CheckpointError::Json { path: self.path.clone(), detail };
        let names: BTreeSet<&String> = map.values().collect();
        if names.is_empty() || names.len() > MAX_SHARDS {
            return Err(bad(format!("{} shards; expected 1 to {MAX_SHARDS}", names.len())));
        }
        for name in &names {
            if Path::new(name).file_name().and_then(|n| n.to_str()) != Some(name.as_str()) {
                return Err(bad(format!("shard name {name:?} is not a plain file name")));
            }
            if !dir.join(name).exists() {
                return Err(CheckpointError::ShardMissing { dir: dir.to_owned(), shard: (*name).clone() });
            }
        }
        Ok(names.into_iter().cloned().collect())
    }

    /// Every tensor lies in the shard that the index names.
    pub fn check(&self, weights: &Weights) -> Result<(), CheckpointError> {
        let entries = self.map.iter().flatten();
        let astray = entries.filter(|(name, shard)| weights.file_of(name) != Some(shard)).min();
        let Some((name, shard)) = astray else { return Ok(()) };
        let suffix = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|rest| rest.ends_with('.'));
        let same = |other: &&str| weights.file_of(other) == Some(shard) && (suffix(other, name) || suffix(name, other));
        let found = weights.names().find(same).map(str::to_owned);
        Err(CheckpointError::IndexMismatch { name: name.clone(), shard: shard.clone(), found })
    }
}

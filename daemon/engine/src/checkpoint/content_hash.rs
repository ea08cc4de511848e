//! A checkpoint's content hash: which weights these are, however the folder is called. Reading all weights takes seconds for large models,
//! so the last result is kept beside the daemon's state, valid as long as no file's size or time of change differs.

use super::CheckpointError;
use serde::{Deserialize, Serialize};
use skip_tables::Digest;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Longest cache file that is parsed.
const MAX_CACHE: u64 = 1 << 20;

/// One safetensors file as it was when it was hashed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    path: PathBuf,
    size: u64,
    modified_ns: u64,
}

/// The cache file.
#[derive(Serialize, Deserialize)]
struct Cached {
    files: Vec<Seen>,
    sha256: Digest,
}

/// [`Digest::of_checkpoint`], from `cache` (a file) where that still holds, else computed and kept there. Blocks while it reads; call it
/// from a thread that may wait. A cache that cannot be read or written only costs time.
///
/// # Errors
/// A weight file cannot be read.
pub fn content_hash(dir: &Path, cache: Option<&Path>) -> Result<Digest, CheckpointError> {
    let io = |source| CheckpointError::Io { path: dir.to_owned(), source };
    let Some(cache) = cache else { return Digest::of_checkpoint(dir).map_err(io) };
    let files = seen(dir).map_err(io)?;
    if let Some(cached) = read_cache(cache)
        && cached.files == files
    {
        return Ok(cached.sha256);
    }
    let sha256 = Digest::of_checkpoint(dir).map_err(io)?;
    // Files that changed meanwhile are not remembered.
    if seen(dir).map_err(io)? == files
        && let Ok(json) = serde_json::to_vec(&Cached { files, sha256 })
        && let Err(error) = skip_tables::replace_file(cache, &json, false)
    {
        tracing::debug!(path = %cache.display(), %error, "the checkpoint's hash was not kept");
    }
    Ok(sha256)
}

fn read_cache(path: &Path) -> Option<Cached> {
    serde_json::from_slice(&super::read_limited(path, MAX_CACHE).ok()?).ok()
}

/// The folder's safetensors files by name; links are followed, so that a changed target is noticed.
fn seen(dir: &Path) -> io::Result<Vec<Seen>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let path = path.canonicalize()?;
            let meta = path.metadata()?;
            let modified_ns = meta.modified()?.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
            files.push(Seen { path, size: meta.len(), modified_ns });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_answers_until_a_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (weights, cache) = (dir.path().join("model.safetensors"), dir.path().join("hash.json"));
        std::fs::write(&weights, "one").unwrap();
        assert_eq!(content_hash(dir.path(), Some(&cache)).unwrap(), Digest::of(b"one"));

        // A planted answer shows that the file is not read again.
        let mut planted: Cached = serde_json::from_slice(&std::fs::read(&cache).unwrap()).unwrap();
        planted.sha256 = Digest::of(b"planted");
        std::fs::write(&cache, serde_json::to_vec(&planted).unwrap()).unwrap();
        assert_eq!(content_hash(dir.path(), Some(&cache)).unwrap(), Digest::of(b"planted"));

        std::fs::write(&weights, "longer").unwrap();
        assert_eq!(content_hash(dir.path(), Some(&cache)).unwrap(), Digest::of(b"longer"));
    }

    #[test]
    fn a_broken_or_unwritable_cache_only_costs_time() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), "one").unwrap();
        let broken = dir.path().join("hash.json");
        std::fs::write(&broken, "{").unwrap();
        assert_eq!(content_hash(dir.path(), Some(&broken)).unwrap(), Digest::of(b"one"));
        let nowhere = dir.path().join("absent/hash.json");
        assert_eq!(content_hash(dir.path(), Some(&nowhere)).unwrap(), Digest::of(b"one"));
    }

    #[test]
    fn a_folder_without_weights_has_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(content_hash(dir.path(), None), Err(CheckpointError::Io { .. })));
    }
}

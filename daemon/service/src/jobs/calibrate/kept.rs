//! Measured bins on disk, so that a job goes on where an earlier one ended: a file a bin, in a folder that is named by all they depend on.

use skip_engine::calibrate::bins::Bin;
use skip_engine::calibrate::record::BinRecord;
use skip_tables::{Digest, replace_file};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest file of a bin: some hundred prompts of some hundred layers.
const MAX_BYTES: u64 = 64 << 20;
/// What a folder's bins depend on.
const KEY: &str = "key";
/// Folders of earlier jobs that stay.
const FOLDERS: usize = 4;

/// The bins of one job.
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// The folder for `key` below `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(parent: &Path, key: &str) -> io::Result<Self> {
        let name = Digest::of(key.as_bytes()).to_string();
        let folder = parent.join(name.get(..16).unwrap_or(&name));
        std::fs::create_dir_all(&folder)?;
        replace_file(&folder.join(KEY), key.as_bytes(), false)?;
        Ok(Self { folder })
    }

    /// The bins of the last job below `parent` whose key `is_ours`, in the order of their lengths.
    pub fn last(parent: &Path, is_ours: impl Fn(&str) -> bool) -> Vec<BinRecord> {
        let folders = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
        let ours = folders.filter(|folder| std::fs::read_to_string(folder.join(KEY)).is_ok_and(|key| is_ours(&key)));
        let newest = ours.max_by_key(|folder| std::fs::metadata(folder).and_then(|meta| meta.modified()).ok());
        let files = newest.into_iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let mut bins: Vec<BinRecord> = files.filter_map(|file| serde_json::from_slice(&bounded(&file.path()).ok()?).ok()).collect();
        bins.sort_by_key(|bin| bin.first);
        bins
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, bin: Bin) -> PathBuf {
        self.folder.join(format!("{}-{}.json", bin.first, bin.end))
    }

    /// A bin that was measured; one that cannot be read is measured again.
    pub fn read(&self, bin: Bin) -> Option<BinRecord> {
        let path = self.path(bin);
        let bytes = match bounded(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a measured length cannot be read and is measured again");
                return None;
            }
        };
        let record: Option<BinRecord> = serde_json::from_slice(&bytes).ok();
        if record.is_none() {
            tracing::warn!(path = %path.display(), "a measured length is damaged and is measured again");
        }
        record.filter(|record| record.bin() == bin)
    }

    /// Keeps a bin.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, record: &BinRecord) -> io::Result<()> {
        replace_file(&self.path(record.bin()), &serde_json::to_vec(record)?, false)
    }

    /// Leaves the folders of the last few jobs, this one's among them; what cannot be removed stays.
    pub fn prune(&self) {
        let Some(parent) = self.folder.parent() else { return };
        // A folder is a job's if its name follows from the key in it: nobody else's is touched.
        let ours = |path: &Path| {
            let key =
                std::fs::symlink_metadata(path.join(KEY)).is_ok_and(|meta| meta.is_file()).then(|| bounded(&path.join(KEY)).ok()).flatten();
            key.is_some_and(|key| path.file_name().and_then(|n| n.to_str()) == Digest::of(&key).to_string().get(..16))
        };
        let Ok(entries) = std::fs::read_dir(parent) else { return };
        let mut others: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| ours(path) && *path != self.folder)
            .filter_map(|path| Some((std::fs::metadata(&path).and_then(|meta| meta.modified()).ok()?, path)))
            .collect();
        others.sort();
        for (_, path) in others.iter().rev().skip(FOLDERS - 1) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(first: usize) -> BinRecord {
        BinRecord {
            first,
            end: first + 128,
            prompts: Vec::new(),
            prefill: None,
            decode: None,
            decode_reference: None,
            measuring_seconds: 0.5,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_bin_comes_back_under_the_same_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path(), "a").unwrap();
        kept.write(&record(256)).unwrap();
        let bin = record(256).bin();
        assert_eq!(Kept::open(dir.path(), "a").unwrap().read(bin), Some(record(256)));
        assert_eq!(Kept::open(dir.path(), "b").unwrap().read(bin), None);
        assert_eq!(kept.read(Bin { first: 256, end: 300 }), None);
        assert_eq!(Kept::last(dir.path(), |key| key == "a"), [record(256)]);
        assert!(Kept::last(dir.path(), |key| key == "c").is_empty());
    }

    #[test]
    fn a_damaged_bin_is_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path(), "a").unwrap();
        kept.write(&record(256)).unwrap();
        std::fs::write(kept.path(record(256).bin()), b"{\"first\": 2").unwrap();
        assert_eq!(kept.read(record(256).bin()), None);
    }

    #[test]
    fn the_last_few_jobs_stay_and_strangers_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let stranger = dir.path().join("notes");
        std::fs::create_dir(&stranger).unwrap();
        // Named as a job's, and none.
        let alike = dir.path().join("0123456789abcdef");
        std::fs::create_dir(&alike).unwrap();
        let all: Vec<Kept> = (0..8).map(|i| Kept::open(dir.path(), &i.to_string()).unwrap()).collect();
        all[0].prune();
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, FOLDERS + 2);
        assert!(all[0].folder.exists() && stranger.exists() && alike.exists());
    }
}

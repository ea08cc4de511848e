//! Measured bins on disk, so that a job goes on where an earlier one ended: a file a bin, in a folder that is named by all they depend on.

use skip_engine::calibrate::bins::Bin;
use skip_engine::calibrate::record::{BinRecord, Plan};
use skip_engine::regular;
use skip_tables::{Digest, replace_file};
use std::io;
use std::path::{Path, PathBuf};

/// Largest file of a bin: some hundred prompts of some hundred layers.
const MAX_BYTES: u64 = 64 << 20;
/// Longest such text.
const MAX_KEY: u64 = 64 << 10;
/// Files of a folder that are looked at: more bins there are not.
const FILES: usize = 1024;
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
        let ours = folders.filter(|folder| key(folder).is_some_and(|key| is_ours(&String::from_utf8_lossy(&key))));
        let newest = ours.max_by_key(|folder| std::fs::metadata(folder).and_then(|meta| meta.modified()).ok());
        let files = newest.into_iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten()).take(FILES);
        let read = |path: &Path| serde_json::from_slice::<BinRecord>(&regular::read(path, MAX_BYTES).ok()?).ok();
        // A bin that its own file's name does not tell is somebody else's.
        let own = |path: &Path, bin: &BinRecord| path.file_name().is_some_and(|name| name == name_of(bin.bin()).as_str());
        let mut bins: Vec<BinRecord> = files.map(|file| file.path()).filter_map(|path| read(&path).filter(|bin| own(&path, bin))).collect();
        bins.sort_by_key(|bin| bin.first);
        bins
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, bin: Bin) -> PathBuf {
        self.folder.join(name_of(bin))
    }

    /// A bin that was measured; None where it was not.
    ///
    /// # Errors
    /// There is something and it is of no use: why, in words. It is to be measured again.
    pub fn read(&self, plan: &Plan<'_>) -> Result<Option<BinRecord>, String> {
        let path = self.path(plan.bin);
        let useless = |why: &dyn std::fmt::Display| Err(format!("{}: {why}: measured again", path.display()));
        let bytes = match regular::read(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return useless(&error),
        };
        match serde_json::from_slice::<BinRecord>(&bytes) {
            Err(error) => useless(&format!("damaged: {error}")),
            Ok(record) => match record.is_of(plan) {
                Ok(()) => Ok(Some(record)),
                Err(what) => useless(&what),
            },
        }
    }

    /// Keeps a bin.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, record: &BinRecord) -> io::Result<()> {
        replace_file(&self.path(record.bin()), &serde_json::to_vec(record)?, false).map(drop)
    }

    /// Leaves the folders of the last few jobs, this one's among them; what cannot be removed stays.
    pub fn prune(&self) {
        let Some(parent) = self.folder.parent() else { return };
        // A folder is a job's if its name follows from the key in it: nobody else's is touched.
        let ours =
            |path: &Path| key(path).is_some_and(|key| path.file_name().and_then(|n| n.to_str()) == Digest::of(&key).to_string().get(..16));
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

fn name_of(bin: Bin) -> String {
    format!("{}-{}.json", bin.first, bin.end)
}

/// The key in a folder; none that a link leads to.
fn key(folder: &Path) -> Option<Vec<u8>> {
    regular::whole(regular::open(&folder.join(KEY), regular::Links::Refused).ok()?, MAX_KEY).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing measured on no prompts: what a run without phases gives.
    fn plan(bin: Bin) -> Plan<'static> {
        Plan { bin, phases: &[], tiers: &[], samples: 0, layers: 1 }
    }

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
        assert_eq!(Kept::open(dir.path(), "a").unwrap().read(&plan(bin)), Ok(Some(record(256))));
        assert_eq!(Kept::open(dir.path(), "b").unwrap().read(&plan(bin)), Ok(None));
        assert_eq!(kept.read(&plan(Bin { first: 256, end: 300 })), Ok(None));
        assert_eq!(Kept::last(dir.path(), |key| key == "a"), [record(256)]);
        assert!(Kept::last(dir.path(), |key| key == "c").is_empty());
    }

    #[test]
    fn a_bin_that_is_damaged_or_of_another_run_is_measured_again_and_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path(), "a").unwrap();
        let (bin, path) = (record(256).bin(), kept.path(record(256).bin()));
        let other = serde_json::to_vec(&record(512)).unwrap();
        for (bytes, why) in [(&b"{\"first\": 2"[..], "damaged: EOF"), (&other, "of another bin"), (&[b' '; 100], "damaged")] {
            std::fs::write(&path, bytes).unwrap();
            let said = kept.read(&plan(bin)).unwrap_err();
            assert!(said.starts_with(&format!("{}: {why}", path.display())) && said.ends_with("measured again"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        assert!(kept.read(&plan(bin)).unwrap_err().contains("not a regular file"), "a pipe is not waited for");
        assert!(Kept::last(dir.path(), |key| key == "a").is_empty());
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

//! What was found of the kernels of each device, as a file: another driver, device or set of kernel files begins anew.

use crate::files;
use serde::{Deserialize, Serialize};
use skip_client::protocol::{KernelVerdict, Qualification};
use skip_tables::replace_file;
use std::path::{Path, PathBuf};

/// The file's form; another one is not read. Times of the first are of other cases.
const VERSION: u32 = 2;
/// Devices that are remembered.
const DEVICES: usize = 8;
/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The file.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    version: u32,
    /// The latest last.
    devices: Vec<Qualification>,
}

impl Default for Record {
    fn default() -> Self {
        Self { version: VERSION, devices: Vec::new() }
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("qualification.json")
}

impl Record {
    /// The record of a state folder; a file that cannot be read or understood counts as none.
    pub fn read(state_dir: &Path) -> Self {
        let path = path(state_dir);
        match files::read(&path, MAX_BYTES) {
            Ok(bytes) => Self::parse(&bytes).unwrap_or_else(|reason| {
                tracing::warn!(path = %path.display(), reason, "what was found of the kernels is not readable; they are tried again");
                Self::default()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "what was found of the kernels cannot be read; they are tried again");
                Self::default()
            }
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.version == VERSION { Ok(record) } else { Err(format!("version {}", record.version)) }
    }

    /// What is known of the device, driver and files of `key`.
    pub fn find(&self, key: &Qualification) -> Option<&Qualification> {
        self.devices.iter().rev().find(|known| same(known, key))
    }

    /// Adds verdicts, new ones over old ones, and gives all of them.
    pub fn merge(&mut self, key: Qualification, verdicts: Vec<KernelVerdict>) -> Qualification {
        let mut all = match self.devices.iter().position(|known| same(known, &key)) {
            Some(i) => self.devices.remove(i),
            None => key,
        };
        all.kernels.retain(|old| verdicts.iter().all(|new| new.kernel != old.kernel));
        all.kernels.extend(verdicts);
        self.devices.push(all.clone());
        self.devices.drain(..self.devices.len().saturating_sub(DEVICES));
        all
    }

    /// Replaces the file of a state folder, whole or not at all.
    pub fn write(&self, state_dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(state_dir)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        replace_file(&path(state_dir), &text, false).map(drop)
    }
}

fn same(a: &Qualification, b: &Qualification) -> bool {
    let key = |q: &Qualification| [&q.device, &q.uuid, &q.capability, &q.driver, &q.kernel_files].map(String::clone);
    key(a) == key(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skip_client::protocol::Verdict;

    fn key() -> Qualification {
        Qualification {
            device: "H200".into(),
            uuid: "ab".into(),
            capability: "9.0".into(),
            driver: "13.0".into(),
            kernel_files: "cd".into(),
            kernels: Vec::new(),
        }
    }

    fn verdict(kernel: &str, verdict: Verdict) -> KernelVerdict {
        KernelVerdict { kernel: kernel.into(), verdict, micros: Some(1.5), reason: None }
    }

    #[test]
    fn what_is_written_is_read_and_new_verdicts_replace_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut record = Record::read(&state);
        record.merge(key(), vec![verdict("a", Verdict::Hung), verdict("b", Verdict::Right)]);
        record.write(&state).unwrap();
        let mut record = Record::read(&state);
        let all = record.merge(key(), vec![verdict("a", Verdict::Right)]);
        assert_eq!(all.kernels, [verdict("b", Verdict::Right), verdict("a", Verdict::Right)]);
        record.write(&state).unwrap();
        assert_eq!(Record::read(&state).find(&key()), Some(&all));
    }

    #[test]
    fn another_device_driver_or_set_of_files_is_not_known() {
        let mut record = Record::default();
        record.merge(key(), vec![verdict("a", Verdict::Right)]);
        let other = || String::from("other");
        for different in [
            Qualification { device: other(), ..key() },
            Qualification { uuid: other(), ..key() },
            Qualification { capability: other(), ..key() },
            Qualification { driver: other(), ..key() },
            Qualification { kernel_files: other(), ..key() },
        ] {
            assert_eq!(record.find(&different), None);
        }
        assert!(record.find(&key()).is_some());
    }

    #[test]
    fn only_the_latest_devices_are_remembered() {
        let mut record = Record::default();
        for i in 0..20 {
            record.merge(Qualification { uuid: i.to_string(), ..key() }, vec![verdict("a", Verdict::Right)]);
        }
        assert_eq!(record.devices.len(), DEVICES);
        assert!(record.find(&Qualification { uuid: "19".into(), ..key() }).is_some());
        assert!(record.find(&Qualification { uuid: "11".into(), ..key() }).is_none());
    }

    #[test]
    fn a_file_that_is_cut_foreign_or_too_large_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::default();
        record.merge(key(), vec![verdict("a", Verdict::Right)]);
        record.write(folder.path()).unwrap();
        let whole = std::fs::read(path(folder.path())).unwrap();
        let foreign = String::from_utf8(whole.clone()).unwrap().replace("\"version\": 2", "\"version\": 1").into_bytes();
        let large = [vec![b' '; MAX_BYTES as usize], whole.clone()].concat();
        for bad in [&whole[..whole.len() / 2], &foreign, b"", b"[]", b"\xff\xfe", &large] {
            std::fs::write(path(folder.path()), bad).unwrap();
            assert_eq!(Record::read(folder.path()), Record::default(), "{} bytes", bad.len());
        }
        std::fs::remove_file(path(folder.path())).unwrap();
        std::fs::create_dir(path(folder.path())).unwrap();
        assert_eq!(Record::read(folder.path()), Record::default());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..200, with in any::<u8>()) {
            let _ = Record::parse(&bytes);
            let mut record = Record::default();
            record.merge(key(), vec![verdict("a", Verdict::Faulted)]);
            let mut spoilt = serde_json::to_vec(&record).unwrap();
            let at = at % spoilt.len();
            spoilt[at] = with;
            let _ = Record::parse(&spoilt);
        }
    }
}

//! A bundle's manifest: which version it is, when it was made, and which file holds the tables of which checkpoint.

use crate::check::{Check, Rejection};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skip_tables::{Digest, parse_json};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The form of manifests that is written and read.
pub const FORMAT: u64 = 1;
/// Longest manifest.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;
/// Longest name of a table file: in the bundle its digest goes before it, and a tar header holds a hundred bytes.
const MAX_FILE_NAME: usize = 35;
/// Most checkpoints a bundle serves.
const MAX_ENTRIES: usize = 64;

/// A manifest. It is itself signed, as a target of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u64,
    /// Version, from 1 up; the one that the floor is held against. The targets role of the metadata has the same.
    pub version: u64,
    /// When it was made, in seconds since 1970. A clock that shows less is wrong, whoever set it.
    pub created: u64,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Tables, a checkpoint each.
    pub tables: Vec<Entry>,
}

/// The tables of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// SHA-256 over the checkpoint's weights.
    pub checkpoint: Digest,
    /// The checkpoint's name, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The bundle's file: a name without a folder.
    pub file: String,
    /// Digest of the file.
    pub sha256: Digest,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`Check::Schema`] or [`Check::TooLarge`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Rejection> {
        let wrong = |message: String| Rejection::new(Check::Schema, format!("manifest.json: {message}"));
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(Rejection::new(Check::TooLarge, format!("manifest.json: {} bytes, at most {MAX_MANIFEST_BYTES}", bytes.len())));
        }
        let value = parse_json(bytes).map_err(|e| wrong(e.to_string()))?;
        if let Some(format) = value.get("format").and_then(serde_json::Value::as_u64).filter(|&f| f != FORMAT) {
            return Err(wrong(format!("of form {format}; this version reads {FORMAT}")));
        }
        let manifest: Self = serde_json::from_value(value).map_err(|e| wrong(e.to_string()))?;
        manifest.check().map_err(wrong)?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("of form {}; this version reads {FORMAT}", self.format));
        }
        if self.version == 0 {
            return Err("version 0: versions begin at 1".into());
        }
        if self.tables.is_empty() || self.tables.len() > MAX_ENTRIES {
            return Err(format!("{} tables: from 1 to {MAX_ENTRIES}", self.tables.len()));
        }
        let mut checkpoints = BTreeSet::new();
        for entry in &self.tables {
            if !is_plain_name(&entry.file) || entry.file.len() > MAX_FILE_NAME {
                return Err(format!("`{}` is no plain file name of at most {MAX_FILE_NAME} bytes", entry.file.escape_debug()));
            }
            if !checkpoints.insert(entry.checkpoint) {
                return Err(format!("two tables for checkpoint {}", entry.checkpoint));
            }
        }
        Ok(())
    }

    /// The tables of a checkpoint.
    ///
    /// # Errors
    /// [`Check::Checkpoint`], naming the installed one and those of the bundle.
    pub fn entry(&self, checkpoint: Digest) -> Result<&Entry, Rejection> {
        self.tables.iter().find(|entry| entry.checkpoint == checkpoint).ok_or_else(|| {
            let names: Vec<_> = self.tables.iter().map(|e| format!("{} ({})", e.name, &e.checkpoint.to_string()[..8])).collect();
            Rejection::new(
                Check::Checkpoint,
                format!("the installed checkpoint's weights are {checkpoint}; the bundle has tables for {}", names.join(", ")),
            )
        })
    }
}

/// At most a hundred (as a tar header holds) letters, digits, `.`, `_` and `-`, not beginning with a dot.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=100).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}

/// A slot's name, `<version>-<first eight digits of the manifest's digest>`: a damaged manifest does not fit its slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotName {
    version: u64,
    digest: String,
}

/// A text that names no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a slot is named <version>-<eight hexadecimal digits>")]
pub struct SlotNameError;

impl SlotName {
    /// The slot of a manifest's bytes.
    pub fn of(version: u64, manifest: &[u8]) -> Self {
        let mut digest = Digest::of(manifest).to_string();
        digest.truncate(8);
        Self { version, digest }
    }

    /// The version in it.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version, self.digest)
    }
}

impl FromStr for SlotName {
    type Err = SlotNameError;

    fn from_str(text: &str) -> Result<Self, SlotNameError> {
        let (version, digest) = text.split_once('-').ok_or(SlotNameError)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if digest.len() != 8 || !digest.bytes().all(hex) {
            return Err(SlotNameError);
        }
        let name = Self { version: version.parse().map_err(|_| SlotNameError)?, digest: digest.to_owned() };
        // One spelling a slot: no sign, no leading zeros.
        if name.version > 0 && name.to_string() == text { Ok(name) } else { Err(SlotNameError) }
    }
}

impl Serialize for SlotName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SlotName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest() -> serde_json::Value {
        let entry = json!({"checkpoint": Digest::of(b"weights"), "name": "tiny", "file": "tiny.json", "sha256": Digest::of(b"tables")});
        json!({"format": 1, "version": 7, "created": 1_790_000_000, "tables": [entry]})
    }

    fn refusal(value: &serde_json::Value) -> String {
        Manifest::parse(value.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_gives_the_tables_of_the_installed_checkpoint_and_names_others() {
        let manifest = Manifest::parse(manifest().to_string().as_bytes()).unwrap();
        assert_eq!(manifest.entry(Digest::of(b"weights")).unwrap().file, "tiny.json");
        let refused = manifest.entry(Digest::of(b"others")).unwrap_err();
        assert_eq!(refused.check, Check::Checkpoint);
        assert!(refused.message.contains("tiny ("), "{refused}");
    }

    #[test]
    fn a_file_name_that_leads_elsewhere_is_refused() {
        for name in ["../tiny.json", "/etc/passwd", "a/b", ".hidden", "", "nul\0", "tiny.json\n"] {
            let mut value = manifest();
            value["tables"][0]["file"] = name.into();
            assert!(refusal(&value).starts_with("schema: manifest.json: "), "{name}");
        }
    }

    #[test]
    fn two_tables_for_one_checkpoint_are_refused() {
        let mut value = manifest();
        value["tables"].as_array_mut().unwrap().push(manifest()["tables"][0].clone());
        assert!(refusal(&value).contains("two tables"));
    }

    #[test]
    fn a_manifest_of_a_later_form_says_so_whatever_else_it_holds() {
        let mut value = manifest();
        value["format"] = 2.into();
        value["novelty"] = true.into();
        assert_eq!(refusal(&value), "schema: manifest.json: of form 2; this version reads 1");
    }

    #[test]
    fn a_slot_name_has_one_spelling() {
        let name = SlotName::of(12, b"manifest");
        assert_eq!(name.to_string().parse(), Ok(name));
        for text in
            ["", "12", "12-", "12-0123456", "12-0123456G", "012-01234567", "+1-01234567", "0-01234567", "../1-01234567", "1-01234567/.."]
        {
            assert_eq!(text.parse::<SlotName>(), Err(SlotNameError), "{text}");
        }
    }
}

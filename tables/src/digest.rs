//! SHA-256 digests: of a checkpoint's weights, of a corpus, of a table's rows.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 hexadecimal digits")]
pub struct DigestError;

impl Digest {
    /// Digest of bytes in memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digest of a checkpoint folder: SHA-256 over the contents of its `*.safetensors` files, one after the other in name order.
    /// config.json is not in it, so writing tables there does not change it.
    ///
    /// # Errors
    /// What reading gives; `NotFound` where the folder holds no safetensors file.
    pub fn of_checkpoint(dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                files.push(path);
            }
        }
        if files.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no safetensors file in {}", dir.display())));
        }
        files.sort();
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        for path in files {
            let mut file = File::open(&path)?;
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) => hash.update(&buffer[..n]),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(Self(hash.finalize().into()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(DigestError);
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or(DigestError);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            // Two hexadecimal digits are below 256.
            *byte = (nibble(pair[0])? * 16 + nibble(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_its_safetensors_in_name_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b.safetensors"), "two").unwrap();
        std::fs::write(dir.path().join("a.safetensors"), "one").unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(Digest::of_checkpoint(dir.path()).unwrap(), Digest::of(b"onetwo"));
    }

    #[test]
    fn a_folder_without_weights_has_no_digest() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Digest::of_checkpoint(dir.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn hexadecimal_reads_back_and_other_text_is_refused() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.to_uppercase().parse(), Ok(Digest::of(b"")));
        for text in ["", "e3", &empty[1..], &empty.replace('e', "g"), &"é".repeat(32)] {
            assert_eq!(text.parse::<Digest>(), Err(DigestError), "{text}");
        }
    }
}

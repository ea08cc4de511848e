//! Reading a bundle's files into memory, from a tar archive or a folder, within limits: nothing is unpacked, so nothing can be unpacked to a wrong place.

use crate::check::{Check, Rejection};
use crate::manifest::is_plain_name;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A bundle's files by name, `metadata/<file>` or `targets/<file>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    files: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

/// What a bundle may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes a file.
    pub file_bytes: usize,
    /// Bytes of all files.
    pub bytes: usize,
    /// Files and folders.
    pub entries: usize,
}

impl Default for Limits {
    /// A table file is 8 MiB at most (and some tens of kilobytes commonly); a chain of roots is a small file a rotation.
    fn default() -> Self {
        Self { file_bytes: skip_tables::MAX_BYTES, bytes: 32 << 20, entries: 512 }
    }
}

/// The folders of a bundle.
const FOLDERS: [&str; 2] = ["metadata", "targets"];
/// A tar file is made of blocks of this size.
const BLOCK: usize = 512;

impl Files {
    /// A file.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// All files, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// Puts a file, unless its name, its size or a file of that name forbids it.
    ///
    /// # Errors
    /// [`Check::Path`], [`Check::TooLarge`] or [`Check::Archive`].
    pub fn add(&mut self, name: &str, bytes: Vec<u8>, limits: &Limits) -> Result<(), Rejection> {
        let plain = name.split_once('/').is_some_and(|(folder, file)| FOLDERS.contains(&folder) && is_plain_name(file));
        if !plain {
            return Err(bad_name(name));
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
        if bytes.len() > limits.file_bytes || self.bytes > limits.bytes {
            return Err(too_large(format!("{name}: a file may have {} bytes, all together {}", limits.file_bytes, limits.bytes)));
        }
        if self.files.len() >= limits.entries {
            return Err(too_large(format!("more than {} files", limits.entries)));
        }
        match self.files.insert(name.to_owned(), bytes) {
            None => Ok(()),
            Some(_) => Err(archive(format!("{name} is there twice"))),
        }
    }

    /// A file to change or take away, as tests of broken bundles do.
    pub fn files_mut(&mut self) -> &mut BTreeMap<String, Vec<u8>> {
        &mut self.files
    }
}

/// Reads a tar archive: files and folders of the ustar form, and nothing else. Links, devices, sparse files and extended headers are refused.
///
/// # Errors
/// [`Check::Archive`], [`Check::Path`], [`Check::TooLarge`], or what reading gives.
pub fn read_archive(mut archive_: impl Read, limits: &Limits) -> Result<Files, Rejection> {
    let mut files = Files::default();
    let mut block = [0; BLOCK];
    for _ in 0..=limits.entries {
        fill(&mut archive_, &mut block)?;
        if block == [0; BLOCK] {
            return Ok(files);
        }
        let header = Header::parse(&block)?;
        if header.folder {
            let name = header.name.trim_end_matches('/');
            // `tar -C bundle .` begins with the folder itself.
            if !(FOLDERS.contains(&name) || name.is_empty()) {
                return Err(bad_name(&header.name));
            }
            continue;
        }
        if header.size > limits.file_bytes || files.bytes.saturating_add(header.size) > limits.bytes {
            // Before a byte of it is read.
            return Err(too_large(format!(
                "{}: {} bytes; a file may have {}, all together {}",
                header.name, header.size, limits.file_bytes, limits.bytes
            )));
        }
        let mut bytes = vec![0; header.size.next_multiple_of(BLOCK)];
        fill(&mut archive_, &mut bytes)?;
        bytes.truncate(header.size);
        files.add(&header.name, bytes, limits)?;
    }
    Err(too_large(format!("more than {} entries", limits.entries)))
}

struct Header {
    name: String,
    size: usize,
    folder: bool,
}

impl Header {
    fn parse(block: &[u8; BLOCK]) -> Result<Self, Rejection> {
        if &block[257..262] != b"ustar" {
            return Err(archive("no tar archive of the ustar form"));
        }
        // The sum is taken with spaces in its own place.
        let sum = block.iter().enumerate().map(|(i, &b)| u64::from(if (148..156).contains(&i) { b' ' } else { b })).sum::<u64>();
        if octal(&block[148..156]) != Some(sum) {
            return Err(archive("a header's sum is wrong"));
        }
        let name = text(&block[0..100])?;
        let prefix = if block[257..263] == *b"ustar\0" { text(&block[345..500])? } else { "" };
        let whole = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let name = whole.strip_prefix("./").unwrap_or(&whole).to_owned();
        let folder = match block[156] {
            b'0' | 0 => false,
            b'5' => true,
            b'1' | b'2' => return Err(Rejection::new(Check::Path, format!("`{}` is a link", name.escape_debug()))),
            kind => return Err(archive(format!("`{}` is neither file nor folder (kind {:?})", name.escape_debug(), char::from(kind)))),
        };
        let size =
            octal(&block[124..136]).and_then(|size| usize::try_from(size).ok()).ok_or_else(|| archive("a size that is no number"))?;
        if folder && size != 0 {
            return Err(archive("a folder with contents"));
        }
        Ok(Self { name, size, folder })
    }
}

/// A number in octal digits, ended by a space or zero.
fn octal(field: &[u8]) -> Option<u64> {
    let digits: Vec<u8> = field.iter().copied().skip_while(|&b| b == b' ').take_while(|&b| b != b' ' && b != 0).collect();
    let digit = |b: u8| b.is_ascii_digit().then(|| char::from(b).to_digit(8)).flatten();
    (!digits.is_empty()).then_some(())?;
    digits.iter().try_fold(0_u64, |number, &b| number.checked_mul(8)?.checked_add(u64::from(digit(b)?)))
}

fn text(field: &[u8]) -> Result<&str, Rejection> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).map_err(|_| Rejection::new(Check::Path, "a name that is not UTF-8"))
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), Rejection> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => archive("it ends too early"),
        _ => Rejection::io("reading the bundle", &error),
    })
}

/// Reads a folder with the folders `metadata` and `targets`. Links and anything but files in them are refused.
///
/// # Errors
/// As [`read_archive`].
pub fn read_folder(folder: &Path, limits: &Limits) -> Result<Files, Rejection> {
    let mut files = Files::default();
    for part in FOLDERS {
        let path = folder.join(part);
        let failed = |error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Rejection::new(Check::Missing, format!("{}: a bundle has the folders metadata and targets", path.display()))
            }
            _ => Rejection::io(path.display(), error),
        };
        if !fs::symlink_metadata(&path).map_err(|e| failed(&e))?.is_dir() {
            return Err(Rejection::new(Check::Path, format!("{} is no folder", path.display())));
        }
        for (count, entry) in fs::read_dir(&path).map_err(|e| failed(&e))?.enumerate() {
            if count >= limits.entries {
                return Err(too_large(format!("more than {} files", limits.entries)));
            }
            let entry = entry.map_err(|e| failed(&e))?;
            let name = format!("{part}/{}", entry.file_name().to_string_lossy());
            files.add(&name, read_file(&entry.path(), limits)?, limits)?;
        }
    }
    Ok(files)
}

fn read_file(path: &Path, limits: &Limits) -> Result<Vec<u8>, Rejection> {
    let failed = |error: &io::Error| Rejection::io(path.display(), error);
    // A link is refused here, also one that takes a file's place while we look.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| {
        let link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        if link { Rejection::new(Check::Path, format!("{} is a link", path.display())) } else { failed(&error) }
    })?;
    if !file.metadata().map_err(|e| failed(&e))?.is_file() {
        return Err(Rejection::new(Check::Path, format!("{} is no file", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(limits.file_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
    Ok(bytes)
}

fn archive(message: impl Into<String>) -> Rejection {
    Rejection::new(Check::Archive, message)
}

fn too_large(message: String) -> Rejection {
    Rejection::new(Check::TooLarge, message)
}

fn bad_name(name: &str) -> Rejection {
    let shown: String = name.escape_debug().take(200).collect();
    Rejection::new(Check::Path, format!("`{shown}`: a bundle's files are metadata/NAME and targets/NAME"))
}

#[cfg(test)]
mod tests;

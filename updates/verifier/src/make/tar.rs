//! A bundle's files as one archive: tar of the ustar form, always the same bytes for the same files.

use skip_updates::Files;

const BLOCK: usize = 512;

/// Packs files.
pub fn pack(files: &Files) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in files.iter() {
        archive.extend_from_slice(&header(name, bytes.len()));
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(name: &str, size: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    // A bundle's names are `folder/file`; the folder goes into the prefix, so that the file has all of its 100 bytes.
    let (folder, file) = name.split_once('/').unwrap_or(("", name));
    put(&mut block, 0, &file.as_bytes()[..file.len().min(100)]);
    put(&mut block, 100, b"0000644\x000000000\x000000000\0");
    put(&mut block, 124, format!("{size:011o}\0").as_bytes());
    put(&mut block, 136, b"00000000000\0        0");
    put(&mut block, 257, b"ustar\x0000");
    put(&mut block, 345, folder.as_bytes());
    let sum: u64 = block.iter().map(|&b| u64::from(b)).sum();
    put(&mut block, 148, format!("{sum:06o}\0 ").as_bytes());
    block
}

fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

//! Whether a kernel file is whole: the driver is given no length and reads where the file's headers point, so a cut one can end the process.

/// 64-bit ELF: header, section headers, program headers.
const HEADER: usize = 64;
const SECTION: usize = 64;
const SEGMENT: usize = 56;
/// A section that takes no room in the file.
const NOBITS: u32 = 8;

/// Refuses what is no little-endian 64-bit ELF file, or points behind its own end.
///
/// # Errors
/// What is wrong, for a person.
pub(super) fn check(image: &[u8]) -> Result<(), &'static str> {
    if image.len() < HEADER || image[..6] != *b"\x7fELF\x02\x01" {
        return Err("it is no kernel file");
    }
    let tables = [
        // Where the table is, its entries' size as the header and as the format has it, how many there are.
        (u64_at(image, 40), u16_at(image, 58), SECTION, u16_at(image, 60)),
        (u64_at(image, 32), u16_at(image, 54), SEGMENT, u16_at(image, 56)),
    ];
    for (place, (at, size, needed, count)) in tables.into_iter().enumerate() {
        let count = usize::from(count);
        if count == 0 {
            continue;
        }
        if usize::from(size) != needed {
            return Err("its headers are of another size");
        }
        let table = part(image, at, (count * needed) as u64).ok_or("it is cut short: its headers are missing")?;
        for entry in table.chunks_exact(needed) {
            let (offset, bytes) = if place == 0 {
                let kind = u32::from_le_bytes(bytes_at(entry, 4));
                (u64_at(entry, 24), if kind == NOBITS { 0 } else { u64_at(entry, 32) })
            } else {
                (u64_at(entry, 8), u64_at(entry, 32))
            };
            part(image, offset, bytes).ok_or("it is cut short: a part of it is missing")?;
        }
    }
    Ok(())
}

fn part(image: &[u8], at: u64, bytes: u64) -> Option<&[u8]> {
    let end = at.checked_add(bytes)?;
    image.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
}

/// The caller has checked that the bytes are there.
fn bytes_at<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&from[at..at + N]);
    bytes
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(from, at))
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(from, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with a section of code, one that takes no room, and a segment, the headers last.
    fn whole() -> Vec<u8> {
        let mut image = vec![0u8; HEADER];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let code = image.len() as u64;
        image.extend([0x55; 128]);
        let sections = image.len() as u64;
        for (kind, offset, bytes) in [(1u32, code, 128u64), (NOBITS, code, 1 << 40)] {
            let mut section = [0u8; SECTION];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&offset.to_le_bytes());
            section[32..40].copy_from_slice(&bytes.to_le_bytes());
            image.extend(section);
        }
        let segments = image.len() as u64;
        let mut segment = [0u8; SEGMENT];
        segment[8..16].copy_from_slice(&code.to_le_bytes());
        segment[32..40].copy_from_slice(&128u64.to_le_bytes());
        image.extend(segment);
        image[32..40].copy_from_slice(&segments.to_le_bytes());
        image[40..48].copy_from_slice(&sections.to_le_bytes());
        for (at, value) in [(54, SEGMENT), (56, 1), (58, SECTION), (60, 2)] {
            image[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
        }
        image
    }

    #[test]
    fn a_whole_file_passes_and_every_cut_one_does_not() {
        let image = whole();
        assert_eq!(check(&image), Ok(()));
        for len in 0..image.len() {
            assert!(check(&image[..len]).is_err(), "{len} of {} bytes", image.len());
        }
        assert!(check(b"#!/bin/sh").is_err());
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        for at in [32, 40] {
            let mut image = whole();
            image[at..at + 8].fill(0xff);
            assert!(check(&image).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0usize..376, with in any::<u64>(), noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut image = whole();
            let at = at.min(image.len() - 8);
            image[at..at + 8].copy_from_slice(&with.to_le_bytes());
            let _ = check(&image);
            let mut image = noise;
            image.splice(0..0, *b"\x7fELF\x02\x01");
            let _ = check(&image);
        }
    }
}

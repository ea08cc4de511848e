use super::*;
use proptest::prelude::*;
use std::process::Command;

/// One entry of a tar archive, with a right sum.
fn entry(name: &[u8], kind: u8, size: usize, bytes: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].copy_from_slice(b"        ");
    let sum: u64 = block.iter().map(|&b| u64::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut all = block.to_vec();
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(BLOCK), 0);
    all
}

fn ended(mut archive: Vec<u8>) -> Vec<u8> {
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn one(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    ended(entry(name.as_bytes(), kind, bytes.len(), bytes))
}

fn refusal(archive: &[u8]) -> Check {
    read_archive(archive, &Limits::default()).unwrap_err().check
}

#[test]
fn what_the_tar_command_packs_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("metadata/1.root.json", "root"), ("targets/tiny.json", "{}")] {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let expected = read_folder(dir.path(), &Limits::default()).unwrap();
    assert_eq!(expected.get("metadata/1.root.json"), Some(b"root".as_slice()));
    for (format, whole) in [("ustar", vec!["metadata", "targets"]), ("gnu", vec!["."])] {
        let packed =
            Command::new("tar").arg("-C").arg(dir.path()).arg(format!("--format={format}")).arg("-c").args(&whole).output().unwrap();
        assert!(packed.status.success());
        assert_eq!(read_archive(packed.stdout.as_slice(), &Limits::default()).unwrap(), expected, "{format}");
    }
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in [
        "../metadata/x",
        "/metadata/x",
        "metadata/../../etc/passwd",
        "metadata/..",
        "metadata/a/b",
        "metadata//x",
        "x",
        "other/x",
        "metadata/.x",
        "",
    ] {
        assert_eq!(refusal(&one(name, b'0', b"x")), Check::Path, "{name}");
    }
    assert_eq!(refusal(&one("../metadata/", b'5', b"")), Check::Path);
}

#[test]
fn links_are_refused_as_paths_and_devices_as_no_part_of_a_bundle() {
    for kind in [b'1', b'2'] {
        assert_eq!(refusal(&one("metadata/x", kind, b"")), Check::Path);
    }
    for kind in [b'3', b'4', b'6', b'7', b'S', b'L', b'K', b'x', b'g'] {
        assert_eq!(refusal(&one("metadata/x", kind, b"")), Check::Archive, "{}", char::from(kind));
    }
}

#[test]
fn a_size_beyond_the_limit_is_refused_before_it_is_read_or_allocated() {
    // Nothing follows the header: were it read, the archive would end too early.
    assert_eq!(refusal(&entry(b"metadata/x", b'0', 0o77_777_777_777, b"")), Check::TooLarge);
    let limits = Limits { file_bytes: 10, bytes: 15, entries: 2 };
    let check = |parts: &[(&str, usize)]| {
        let archive = ended(parts.iter().flat_map(|(name, n)| entry(name.as_bytes(), b'0', *n, &vec![1; *n])).collect());
        read_archive(archive.as_slice(), &limits).map_err(|e| e.check).err()
    };
    assert_eq!(check(&[("metadata/a", 10), ("metadata/b", 5)]), None);
    assert_eq!(check(&[("metadata/a", 11)]), Some(Check::TooLarge));
    assert_eq!(check(&[("metadata/a", 10), ("metadata/b", 6)]), Some(Check::TooLarge));
    assert_eq!(check(&[("metadata/a", 1), ("metadata/b", 1), ("metadata/c", 1)]), Some(Check::TooLarge));
}

#[test]
fn folders_without_end_are_refused() {
    let many = entry(b"metadata/", b'5', 0, b"").repeat(10_000);
    assert_eq!(refusal(&many), Check::TooLarge);
}

#[test]
fn a_file_that_is_there_twice_is_refused() {
    let twice = [entry(b"metadata/x", b'0', 1, b"a"), entry(b"metadata/x", b'0', 1, b"b")].concat();
    assert_eq!(refusal(&ended(twice)), Check::Archive);
}

#[test]
fn an_archive_cut_anywhere_is_refused() {
    let whole = one("metadata/x", b'0', &[7; 700]);
    assert!(read_archive(whole.as_slice(), &Limits::default()).is_ok());
    for len in 0..whole.len() - BLOCK {
        // One block of zeros ends an archive; the second is padding.
        if len < whole.len() - BLOCK {
            assert_eq!(refusal(&whole[..len]), Check::Archive, "{len} bytes");
        }
    }
}

#[test]
fn links_in_a_folder_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for part in FOLDERS {
        fs::create_dir(dir.path().join(part)).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("targets/x")).unwrap();
    assert_eq!(read_folder(dir.path(), &Limits::default()).unwrap_err().check, Check::Path);
}

#[test]
fn a_folder_that_is_no_bundle_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read_folder(dir.path(), &Limits::default()).unwrap_err().check, Check::Missing);
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic_or_take_more_than_the_limits(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = read_archive(bytes.as_slice(), &Limits::default());
    }

    #[test]
    fn a_flipped_bit_in_a_header_is_seen(bit in 0..BLOCK * 8) {
        let mut archive = one("metadata/x", b'0', b"x");
        archive[bit / 8] ^= 1 << (bit % 8);
        let read = read_archive(archive.as_slice(), &Limits::default());
        // A sum is over bytes, so one bit always shows in it; in the sum's own spare bytes it changes nothing.
        prop_assert!(read.is_err() || (148..156).contains(&(bit / 8)), "bit {bit}");
    }
}

//! Updates over the air: the archive, the manifest, and the small files of the store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_updates::{Limits, read_archive};

fuzz_target!(|bytes: &[u8]| {
    skip_updates::fuzz_small_files(bytes);
    let limits = Limits { file_bytes: 1 << 16, bytes: 1 << 18, entries: 64 };
    let Ok(files) = read_archive(bytes, &limits) else { return };
    let mut whole = 0;
    for (name, bytes) in files.iter() {
        assert!(name.starts_with("metadata/") || name.starts_with("targets/"), "{name}");
        assert!(!name.contains("..") || !name.contains("/."), "{name}");
        assert!(bytes.len() <= limits.file_bytes, "{name}");
        whole += bytes.len();
    }
    assert!(whole <= limits.bytes && files.iter().count() <= limits.entries);
});

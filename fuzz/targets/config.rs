//! config.json of a checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_engine::checkpoint::Checkpoint;

fuzz_target!(|bytes: &[u8]| {
    skipd_fuzz::CHECKPOINT.with(|dir| {
        skipd_fuzz::put(dir.path(), "config.json", bytes);
        let _ = Checkpoint::open(dir.path());
    });
});

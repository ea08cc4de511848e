//! model.safetensors.index.json: which shards there are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_engine::checkpoint::Checkpoint;

thread_local! {
    static SHARDED: tempfile::TempDir = {
        let dir = skipd_fuzz::folder();
        skipd_fuzz::put(dir.path(), "config.json", skipd_fuzz::CONFIG);
        skipd_fuzz::put(dir.path(), "a.safetensors", skipd_fuzz::WEIGHTS);
        dir
    };
}

fuzz_target!(|bytes: &[u8]| {
    SHARDED.with(|dir| {
        skipd_fuzz::put(dir.path(), "model.safetensors.index.json", bytes);
        let _ = Checkpoint::open(dir.path());
    });
});

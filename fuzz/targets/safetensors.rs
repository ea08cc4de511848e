//! A safetensors file: its header against what is behind it, and every matrix the decoder would take from it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_engine::checkpoint::Checkpoint;

fuzz_target!(|bytes: &[u8]| {
    skipd_fuzz::CHECKPOINT.with(|dir| {
        skipd_fuzz::put(dir.path(), "model.safetensors", bytes);
        if let Ok(checkpoint) = Checkpoint::open(dir.path()) {
            for layer in 0..checkpoint.architecture().layers {
                checkpoint.layer(layer).expect("an opened checkpoint has its layers");
            }
        }
    });
});

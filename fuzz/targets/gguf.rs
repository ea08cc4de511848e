//! A GGUF file, imported whole: metadata, tensors of every type, tokenizer, template.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    skipd_fuzz::FOLDER.with(|dir| {
        skipd_fuzz::put(dir.path(), "model.gguf", bytes);
        let out = dir.path().join("out");
        let imported = skip_import::import(&dir.path().join("model.gguf"), &out, |_| {});
        assert_eq!(imported.is_ok(), out.join("config.json").exists(), "a checkpoint appears whole or not at all");
        let _ = std::fs::remove_dir_all(&out);
    });
});

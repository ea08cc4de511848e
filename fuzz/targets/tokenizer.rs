//! tokenizer.json: opened, then a text there and back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_engine::tokenizer::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    skipd_fuzz::FOLDER.with(|dir| {
        skipd_fuzz::put(dir.path(), "tokenizer.json", bytes);
        let Ok(tokenizer) = Tokenizer::open(dir.path(), 300) else { return };
        if let Ok(ids) = tokenizer.encode("ab <s> ü\u{1F600} 12\n", true) {
            let _ = tokenizer.decode(&ids, true);
        }
        let _ = tokenizer.decode(&[0, 1, 299, u32::MAX], false);
    });
});

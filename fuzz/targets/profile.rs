//! Clock profiles, and what nvpmodel writes and prints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_platform::{Profile, nvpmodel};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Profile::parse("fuzzed", text);
    let _ = nvpmodel::parse_status(text);
    let _ = nvpmodel::parse_query(text);
    if let Ok(modes) = nvpmodel::Modes::parse(text) {
        for (id, name) in &modes.modes {
            assert_eq!(modes.name(*id), Some(name.as_str()));
        }
    }
});

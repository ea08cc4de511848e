//! Options of the bus (`a{sv}`): JSON to variants, and back as the daemon reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use skip_client::protocol::{ChatMessage, GenerationOptions, SetTableOptions};
use skip_client::variant::{from_dict, to_dict};

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let _ = ChatMessage::list(value.clone());
    let Value::Object(object) = value else { return };
    let dict = to_dict(&object).into_iter().filter_map(|(key, value)| Some((key, value.try_into().ok()?))).collect();
    let Ok(keys): Result<Map<String, Value>, _> = from_dict(&dict) else { return };
    let _ = SetTableOptions::from_object(keys.clone());
    if let Ok(options) = GenerationOptions::from_bus(keys) {
        let again = GenerationOptions::from_bus(options.to_bus());
        assert_eq!(again.as_ref(), Ok(&options), "options come back as they were sent");
    }
});

//! Bodies of the socket's requests, as far as they are read before anything runs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_client::protocol::{ChatRequest, CompletionRequest, unsupported};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = ChatRequest::from_json(bytes) {
        let _ = unsupported::check(&request.unknown);
        let _ = unsupported::check_messages(&request.messages);
    }
    if let Ok(request) = CompletionRequest::from_json(bytes) {
        let _ = unsupported::check(&request.unknown);
    }
});

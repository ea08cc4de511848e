//! A chat template, compiled and rendered with a conversation: in bounded work, whatever it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, json};
use skip_engine::template::{ChatTemplate, RenderOptions};

fuzz_target!(|source: &str| {
    let specials = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let Ok(template) = ChatTemplate::compile(source.to_owned(), specials.as_object().cloned().unwrap_or_default()) else { return };
    let messages = [json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "hé {{ x }}"})];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    for tools in [None, Some(&tools[..])] {
        let _ = template.render(&messages, &RenderOptions { tools, add_generation_prompt: true, extra: Map::new() });
    }
});

//! Tokenizer and chat template of the real checkpoints: recorded ids, recorded text, recorded conversations.

use crate::answers::models;
use crate::rig::checkpoint;
use serde_json::{Value, json};
use skip_engine::detokenize::TextStream;
use skip_engine::template::{ChatTemplate, RenderOptions};
use skip_engine::tokenizer::Tokenizer;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn tokenizer(model: &str) -> Tokenizer {
    let checkpoint = checkpoint(model);
    Tokenizer::open(checkpoint.dir(), checkpoint.architecture().vocab).unwrap()
}

#[test]
fn prompts_and_answers_have_the_recorded_ids_and_text() {
    for (model, golden) in models() {
        let tokenizer = Arc::new(tokenizer(model));
        for (name, case) in &golden.cases {
            assert_eq!(tokenizer.encode(&case.prompt, true).unwrap(), case.prompt_ids, "{model} {name}");
            assert_eq!(tokenizer.decode(&case.greedy_ids, false), case.greedy_text, "{model} {name}");
            let mut stream = TextStream::new(tokenizer.clone(), &[], false);
            let streamed: String = case.greedy_ids.iter().map(|&id| stream.push(id).text).collect();
            assert_eq!(streamed + &stream.finish().text, case.greedy_text, "{model} {name}");
        }
    }
}

/// The conversations behind the recorded chat prompts; the second has no system message, so the model's own is put first.
#[test]
fn conversations_are_rendered_as_recorded() {
    let conversations = [
        (
            "chat",
            json!([{"role": "system", "content": "You are a robot assistant. Answer briefly."},
            {"role": "user", "content": [{"type": "text", "text": "What is the capital of France, and which river flows through it?"}]}]),
        ),
        (
            "chat_multi",
            json!([{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada!"},
            {"role": "user", "content": "What is my name?"}]),
        ),
    ];
    for (model, golden) in models() {
        // Checkpoints that are no chat models have neither a template nor conversations.
        let recorded: Vec<_> = conversations.iter().filter(|(name, _)| golden.cases.contains_key(*name)).collect();
        let template = ChatTemplate::open(checkpoint(model).dir()).unwrap();
        assert_eq!(template.is_some(), recorded.len() == conversations.len(), "{model}");
        let Some(template) = template else { continue };
        for (name, messages) in recorded {
            let options = RenderOptions { add_generation_prompt: true, ..Default::default() };
            let messages: &Vec<Value> = messages.as_array().unwrap();
            assert_eq!(template.render(messages, &options).unwrap(), golden.cases[*name].prompt, "{model} {name}");
        }
    }
}

/// Long prompts of text and of what pre-tokenizers like least: one word, one run of spaces.
#[test]
fn long_prompts_are_encoded_quickly() {
    for (model, golden) in models() {
        let tokenizer = tokenizer(model);
        let line = &golden.cases["log_1k"].prompt;
        for (what, text) in [("text", line.repeat(7)), ("one word", "ab".repeat(20_000)), ("spaces", " ".repeat(40_000) + "x")] {
            let spent = |text: &str| {
                let start = Instant::now();
                (tokenizer.encode(text, false).unwrap().len(), start.elapsed())
            };
            let (tokens, first) = spent(&text);
            let best = (0..3).map(|_| spent(&text).1).min().unwrap();
            println!("{model}: {what}: {} bytes, {tokens} tokens, first {first:.1?}, best {best:.1?}", text.len());
            // Far above what is printed on an idle machine (the aim is 100 ms), far below what a quadratic encoder would take.
            assert!(best < Duration::from_millis(800), "{model} {what}: {best:?}");
        }
    }
}

//! End to end against the real skipd and SmolLM2-135M-Instruct: `tools/fetch-model smollm2`, `cargo build --release --workspace`,
//! `cargo test --release --workspace --test e2e`.
//! Run in one process, so that tests which change nothing share one daemon.

// A helper that finds nothing to unwrap has found a failure of the test that called it.
#![allow(clippy::unwrap_used)]

mod backend;
mod batch;
mod bus;
mod calibrate;
mod clients;
mod evaluate;
mod faults;
mod foreign;
mod jobs;
mod library;
mod lifecycle;
mod load;
mod memory;
mod polkit;
mod prefix;
mod profile;
mod refusals;
mod sleep;
mod soak;
mod socket;
mod stopping;
mod streams;
mod structured;
mod supervised;
mod tables;
mod tcp;
mod unconfigured;
mod update;

use serde_json::{Value, json};

/// English prose of about this many tokens, the same on every machine: the licence, again and again.
fn prose(tokens: usize) -> String {
    let text = include_str!("../../../LICENSE");
    text.split_whitespace().cycle().take(tokens * 7 / 10).collect::<Vec<_>>().join(" ")
}

/// A greedy text completion of `prompt`.
fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// Votes and skips of a phase.
fn votes(answer: &Value, phase: &str) -> (u64, u64) {
    let phase = &answer["usage"]["skipd"][phase];
    (phase["votes"].as_u64().unwrap(), phase["skipped"].as_u64().unwrap())
}

/// The text of a whole answer, chat or completion.
fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).unwrap()
}

/// The text of a streamed answer, chat or completion.
fn streamed_text(events: &[Value]) -> String {
    let pieces = events.iter().filter_map(|e| e["choices"][0]["text"].as_str().or_else(|| e["choices"][0]["delta"]["content"].as_str()));
    pieces.collect()
}

/// How a streamed answer ended: reasons and error codes. There must be exactly one, whatever happened.
fn ends(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str().or(e["error"]["code"].as_str())).collect()
}

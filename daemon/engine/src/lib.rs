//! Checkpoint, tokenizer, decoder, paged KV cache, scheduler and sampler: one engine loop on one thread.
//!
//! [`handle`] is the seam to the service: everything that changes engine state travels as one message and is applied between steps.

pub mod ask;
pub mod cache;
pub mod calibrate;
pub mod calls;
pub mod checkpoint;
pub mod decoder;
pub mod detokenize;
pub mod engine;
pub mod evaluate;
pub mod grammar;
pub mod handle;
pub mod measured;
pub mod prefix;
pub mod regular;
pub mod scheduler;
pub mod stats;
pub mod template;
pub mod tokenizer;

pub use engine::{Engine, EngineHandle, EngineOptions, EngineState};

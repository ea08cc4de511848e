//! A real checkpoint against an independent implementation's tokens and logits, and against itself: chunked, batched, alone.
//! SmolLM2 always; `SKIP_GOLDEN` adds the checkpoints that it names (`qwen2.5-coder-0.5b,qwen2.5-coder-1.5b,gemma3-270m`), or all.
//! `tools/fetch-model` makes the folders. On a device: `-- --ignored --nocapture --test-threads 1 cuda`, or `tools/check-gpu`.

#![allow(clippy::unwrap_used)] // a test may panic wherever it stands

mod answers;
mod cuda;
mod endurance;
mod invariance;
mod long;
mod measuring;
mod rig;
mod tap;
mod text;

//! A real checkpoint against an independent implementation's tokens and logits, and against itself: chunked, batched, alone.
//! SmolLM2 always; `SKIP_GOLDEN=all` adds Qwen2.5-Coder-0.5B. `tools/fetch-model` makes the folders.

#![allow(clippy::unwrap_used)] // a test may panic wherever it stands

mod answers;
mod cuda;
mod invariance;
mod rig;
mod text;

//! What an engine is started with, and the memory that follows from it.

use crate::handle::TableSet;
use skip_kernels::{KvFormat, PAGE};
use std::time::Duration;

/// Of the room for an automatic cache, one part in this many is left: others take memory too before it is counted again.
const MARGIN: u64 = 16;

/// How large the paged cache is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Tokens, rounded up to pages of 128.
    Tokens(u32),
    /// Bytes of K and V over all layers.
    Bytes(u64),
    /// Four requests of full context, within [`EngineOptions::cache_room`].
    Auto,
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Element format of the cache.
    pub kv_format: KvFormat,
    /// Size of the cache.
    pub cache: CacheSize,
    /// Caps the model's context.
    pub context: Option<u32>,
    /// Requests that may wait for admission before `Busy`.
    pub queue_limit: u32,
    /// Requests that may hold a slot at once.
    pub max_running: usize,
    /// A fixed prefill chunk in tokens, rounded up to a multiple of 128: repeatable, but deaf to load. None: chunks follow measured speed.
    pub chunk: Option<usize>,
    /// The longest prefill chunk where `chunk` does not fix it.
    pub longest_chunk: usize,
    /// How long a step may take.
    pub step_budget: Duration,
    /// Bytes that an automatic cache may have: what is left beside everything else; None: nobody says.
    pub cache_room: Option<u64>,
    /// Undelivered tokens a request may have before its reader counts as too slow.
    pub token_buffer: usize,
    /// The tables in force from the start.
    pub tables: TableSet,
    /// Percent of the time that background work computes while nothing else does.
    pub background_duty: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            kv_format: KvFormat::Fp16,
            cache: CacheSize::Auto,
            context: None,
            queue_limit: 64,
            max_running: 16,
            chunk: None,
            longest_chunk: 1024,
            cache_room: None,
            step_budget: Duration::from_millis(500),
            token_buffer: 1024,
            tables: TableSet::default(),
            background_duty: 100,
        }
    }
}

impl EngineOptions {
    /// The longest prompt + answer there may be of a model, if the cache takes it.
    pub fn context_of(&self, info: &ModelInfo) -> u32 {
        self.context.map_or(info.context, |cap| cap.min(info.context)).max(1)
    }

    /// The longest prefill chunk of a step, in tokens.
    pub fn max_chunk(&self) -> usize {
        self.chunk.unwrap_or(self.longest_chunk).max(1).next_multiple_of(PAGE)
    }
}

/// What the engine knows of a model before its weights are loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Name in status and `/v1/models`.
    pub name: String,
    /// The model's own limit in tokens.
    pub context: u32,
    /// Token ids are below this.
    pub vocabulary: u32,
    /// End-of-sequence ids.
    pub eos: Vec<u32>,
    /// Bytes of K and V a cached token takes over all layers.
    pub kv_bytes_per_token: u64,
}

/// Pages and the context they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// Pages in all.
    pub pages: u32,
    /// Longest prompt + answer.
    pub context: u32,
    /// Bytes of all pages.
    pub bytes: u64,
    /// Pages that pinned prefixes may take: at most half, and never one that a request of full context may need.
    pub pinned: u32,
}

impl CachePlan {
    /// Sizes the cache; at least one page.
    pub fn new(options: &EngineOptions, info: &ModelInfo) -> Self {
        let wanted = options.context_of(info);
        let page_bytes = info.kv_bytes_per_token.max(1) * PAGE as u64;
        let pages = match options.cache {
            CacheSize::Tokens(tokens) => u64::from(tokens).div_ceil(PAGE as u64),
            CacheSize::Bytes(bytes) => bytes / page_bytes,
            CacheSize::Auto => {
                let four = 4 * u64::from(wanted).div_ceil(PAGE as u64);
                options.cache_room.map_or(four, |bytes| four.min((bytes - bytes / MARGIN) / page_bytes))
            }
        };
        let pages = pages.clamp(1, u64::from(u32::MAX / PAGE as u32)) as u32;
        let context = wanted.min(pages * PAGE as u32);
        let pinned = (pages - context.div_ceil(PAGE as u32)).min(pages / 2);
        Self { pages, context, bytes: u64::from(pages) * page_bytes, pinned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ModelInfo {
        ModelInfo { name: "m".into(), context: 8192, vocabulary: 10, eos: vec![0], kv_bytes_per_token: 1000 }
    }

    #[test]
    fn cache_of_tokens_rounds_up_to_pages_and_caps_the_context() {
        let options = EngineOptions { cache: CacheSize::Tokens(1000), ..EngineOptions::default() };
        assert_eq!(CachePlan::new(&options, &info()), CachePlan { pages: 8, context: 1024, bytes: 8 * 128_000, pinned: 0 });
    }

    #[test]
    fn pinned_prefixes_leave_half_of_the_pages_and_all_that_one_request_may_need() {
        for (cache, context, pinned) in [(8192, 8192, 0), (8192, 6000, 17), (8192, 1000, 32), (32_768, 8192, 128)] {
            let options = EngineOptions { cache: CacheSize::Tokens(cache), context: Some(context), ..EngineOptions::default() };
            let plan = CachePlan::new(&options, &info());
            assert_eq!(plan.pinned, pinned, "{plan:?}");
        }
    }

    #[test]
    fn an_automatic_cache_holds_four_contexts_or_what_there_is_room_for() {
        let pages = |cache_room| CachePlan::new(&EngineOptions { cache_room, ..EngineOptions::default() }, &info()).pages;
        assert_eq!(pages(None), 4 * 64);
        assert_eq!(pages(Some(1 << 40)), 4 * 64);
        assert_eq!(pages(Some(160 * 128_000)), 150, "all of it but a sixteenth");
        assert_eq!(pages(Some(0)), 1, "the ledger is going to refuse it, with its numbers");
    }

    #[test]
    fn cache_of_bytes_never_exceeds_them() {
        let options = EngineOptions { cache: CacheSize::Bytes(1_000_000), ..EngineOptions::default() };
        assert_eq!(CachePlan::new(&options, &info()).pages, 7);
    }

    #[test]
    fn context_option_caps_the_model() {
        let options = EngineOptions { cache: CacheSize::Tokens(100_000), context: Some(4096), ..EngineOptions::default() };
        assert_eq!(CachePlan::new(&options, &info()).context, 4096);
    }
}

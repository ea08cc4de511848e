//! What the engine tells about itself: one snapshot, published after every step and read without waiting for one.

use crate::engine::{CachePlan, EngineState, Loaded};
use crate::handle::{FinishReason, NamedTable, TableSet};
use crate::scheduler::ReuseCounts;
use skip_kernels::attention::SkipCounters;
use skip_kernels::{BackendInfo, Phase};
use std::sync::Arc;

/// Tables whose counters are kept; beyond it the oldest that is not in force is forgotten.
const MAX_TABLES: usize = 64;

/// Waits of control requests that are told apart: no step, one, two, more.
pub const CONTROL_WAITS: usize = 4;

/// Skips of one phase under one table, since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSkips {
    /// Phase.
    pub phase: Phase,
    /// The table.
    pub table: Arc<NamedTable>,
    /// Votes, skips and bytes, summed over layers, steps and requests.
    pub counters: SkipCounters,
}

/// The engine at the end of its last step.
#[derive(Clone, Debug)]
pub struct Status {
    /// Loading, ready, draining, stopped or failed.
    pub state: EngineState,
    /// The backend, once it is there.
    pub backend: Option<BackendInfo>,
    /// Longest prompt + answer in tokens: the model's limit, or the cache's where that is smaller.
    pub context: u32,
    /// Requests that hold a slot (prefilling, decoding or paused).
    pub running: u32,
    /// Requests that wait for admission.
    pub queued: u32,
    /// Cache pages that running requests and pinned prefixes hold.
    pub pages_used: u32,
    /// Of those, the pinned prefixes' own.
    pub pages_pinned: u32,
    /// Of the free pages, those kept for prompts that begin as an earlier one did.
    pub pages_cached: u32,
    /// Pages that pinned prefixes may take.
    pub pages_pinnable: u32,
    /// Cache pages in all, 128 tokens each.
    pub pages_total: u32,
    /// Bytes of the cache when every page is in use.
    pub cache_bytes: u64,
    /// Steps run.
    pub steps: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Prompt tokens looked for in the cache and taken from it.
    pub reuse: ReuseCounts,
    /// Tokens drawn and delivered.
    pub generated_tokens: u64,
    /// Ended requests by reason, in the order of [`FinishReason::ALL`].
    pub finished: [u64; FinishReason::ALL.len()],
    /// Prefill votes over all tables.
    pub prefill: SkipCounters,
    /// Decode votes over all tables.
    pub decode: SkipCounters,
    /// The same by table.
    pub by_table: Vec<TableSkips>,
    /// The tables new requests start with.
    pub tables: TableSet,
    /// Prompt tokens a second in the last step that had any; 0 before.
    pub prefill_speed: f64,
    /// Tokens a second, over all requests, in the last step that decoded; 0 before.
    pub decode_speed: f64,
    /// Seconds spent in steps.
    pub step_seconds: f64,
    /// Of those, in steps with prompt tokens.
    pub prefill_step_seconds: f64,
    /// Of all, in attention, where the backend measures it: CUDA does in steps with prompt tokens.
    pub attention_seconds: f64,
    /// Steps of decode alone whose host time was measured.
    pub decode_steps: u64,
    /// Seconds that the loop's thread took for those beside waiting for the device; with a device that runs one step while the next is
    /// prepared, they cost time only where they are longer than the step.
    pub decode_host_seconds: f64,
    /// Of all steps' seconds, those of the background class.
    pub background_step_seconds: f64,
    /// Seconds in which background work alone was there and kept to its share of the time.
    pub background_rest_seconds: f64,
    /// Background requests are held back.
    pub background_held: bool,
    /// Of the queued, those that wait for that to end.
    pub held: u32,
    /// Control requests by the steps of lower classes that ended between their coming and their own first step, or were still under way beside
    /// it: none, one, two, more.
    pub control_waits: [u64; CONTROL_WAITS],
    /// Weights and memory; None until they are there.
    pub loaded: Option<Loaded>,
}

impl Status {
    /// A new engine's.
    pub(crate) fn new(cache: &CachePlan, tables: TableSet) -> Self {
        Self {
            state: EngineState::Loading { progress: 0.0 },
            backend: None,
            context: cache.context,
            running: 0,
            queued: 0,
            pages_used: 0,
            pages_pinned: 0,
            pages_cached: 0,
            pages_pinnable: cache.pinned,
            pages_total: cache.pages,
            cache_bytes: cache.bytes,
            steps: 0,
            prompt_tokens: 0,
            reuse: ReuseCounts::default(),
            generated_tokens: 0,
            finished: [0; FinishReason::ALL.len()],
            prefill: SkipCounters::default(),
            decode: SkipCounters::default(),
            by_table: Vec::new(),
            tables,
            prefill_speed: 0.0,
            decode_speed: 0.0,
            step_seconds: 0.0,
            prefill_step_seconds: 0.0,
            attention_seconds: 0.0,
            decode_steps: 0,
            decode_host_seconds: 0.0,
            background_step_seconds: 0.0,
            background_rest_seconds: 0.0,
            background_held: false,
            held: 0,
            control_waits: [0; CONTROL_WAITS],
            loaded: None,
        }
    }

    /// Ended requests of one reason.
    pub fn finished(&self, reason: FinishReason) -> u64 {
        FinishReason::ALL.iter().position(|r| *r == reason).map_or(0, |i| self.finished[i])
    }

    /// Votes of one phase over all tables.
    pub fn phase(&self, phase: Phase) -> SkipCounters {
        match phase {
            Phase::Prefill => self.prefill,
            Phase::Decode => self.decode,
        }
    }

    pub(crate) fn count_finished(&mut self, reason: FinishReason) {
        if let Some(i) = FinishReason::ALL.iter().position(|r| *r == reason) {
            self.finished[i] += 1;
        }
    }

    pub(crate) fn count_control_wait(&mut self, steps: usize) {
        self.control_waits[steps.min(CONTROL_WAITS - 1)] += 1;
    }

    /// Adds a request's votes of a step.
    pub(crate) fn count_votes(&mut self, phase: Phase, table: Option<&Arc<NamedTable>>, counters: SkipCounters) {
        if counters.votes == 0 {
            return;
        }
        match phase {
            Phase::Prefill => self.prefill += counters,
            Phase::Decode => self.decode += counters,
        }
        let Some(table) = table else { return };
        let same = |t: &TableSkips| t.phase == phase && (Arc::ptr_eq(&t.table, table) || t.table.hash == table.hash);
        if let Some(entry) = self.by_table.iter_mut().find(|t| same(t)) {
            entry.counters += counters;
            return;
        }
        if self.by_table.len() == MAX_TABLES {
            let tables = &self.tables;
            let in_force = |t: &TableSkips| tables.phase(t.phase).is_some_and(|now| now.hash == t.table.hash);
            let oldest = self.by_table.iter().position(|t| !in_force(t)).unwrap_or(0);
            self.by_table.remove(oldest);
        }
        self.by_table.push(TableSkips { phase, table: table.clone(), counters });
    }
}

//! One admitted request: its tokens, pages, tables and counts.

use super::Arrival;
use super::reuse::Beginning;
use super::steer::Steer;
use crate::cache::PageLease;
use crate::handle::{FinishReason, Finished, PhaseUsage, Progress, RequestId, Stage, TableSet, Usage};
use crate::measured::Measured;
use skip_kernels::Phase;
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{TableSlot, drawn_by};
use skip_kernels::gaps::Gaps;
use skip_kernels::sampling::SamplingParams;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request that holds a slot and pages for all it may ever need.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: RequestId,
    pub arrival: Arrival,
    /// Prompt, then drawn tokens; those of steps under way stand for themselves ([`drawn_by`]).
    pub tokens: Vec<u32>,
    prompt: usize,
    /// Tokens at the end that nobody has seen.
    unseen: usize,
    /// Keys in the cache once the steps under way are done.
    pub cached: usize,
    /// It has been part of a step.
    pub began: bool,
    pub pages: PageLease,
    /// What of its prompt others may have computed, or take.
    pub beginning: Beginning,
    /// The tables it began with.
    pub tables: TableSet,
    /// Where they lie: prefill, decode.
    pub slots: [Option<TableSlot>; 2],
    /// How its next token is drawn.
    pub sampling: SamplingParams,
    steer: Steer,
    counters: [SkipCounters; 2],
    measured: Measured,
    admitted: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    pub fn new(
        id: RequestId,
        mut arrival: Arrival,
        pages: PageLease,
        tables: TableSet,
        slots: [Option<TableSlot>; 2],
        beginning: Beginning,
        now: Instant,
    ) -> Self {
        let tokens = std::mem::take(&mut arrival.request.prompt);
        let steer = Steer::new(std::mem::take(&mut arrival.request.steering));
        let sampling = SamplingParams { edits: steer.edits(), ..arrival.request.sampling.clone() };
        Self {
            id,
            arrival,
            prompt: tokens.len(),
            tokens,
            unseen: 0,
            cached: 0,
            began: false,
            pages,
            beginning,
            tables,
            slots,
            sampling,
            steer,
            counters: Default::default(),
            measured: Measured::default(),
            admitted: now,
            first_token: None,
            last_token: None,
        }
    }

    /// What its next step is part of.
    pub fn phase(&self) -> Phase {
        if self.cached < self.prompt { Phase::Prefill } else { Phase::Decode }
    }

    pub fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// Whether it can be part of a step: it has a token that is in no step yet, wants more than those under way will give, and knows what
    /// may follow.
    pub fn goes_on(&self) -> bool {
        let knows = self.unseen == 0 || !self.steer.follows();
        knows && self.cached < self.tokens.len() && self.tokens.len() - self.prompt < self.arrival.request.max_tokens as usize
    }

    /// A step over `range` is under way; where it draws, the sequence's place in it.
    pub fn begin(&mut self, range: &Range<usize>, draws: Option<usize>) {
        self.cached = range.end;
        self.began = true;
        if let Some(place) = draws {
            self.tokens.push(drawn_by(place));
            self.unseen += 1;
        }
    }

    /// L of the vote for a step over `range`.
    pub fn final_len(&self, range: &Range<usize>) -> usize {
        if range.start < self.prompt { self.prompt } else { range.end }
    }

    pub fn slot(&self, phase: Phase) -> Option<TableSlot> {
        self.slots[phase as usize]
    }

    /// Counts a step's votes.
    pub fn count(&mut self, phase: Phase, votes: SkipCounters) {
        self.counters[phase as usize] += votes;
    }

    /// Takes a step's votes by gap.
    pub fn measured(&mut self, phase: Phase, gaps: &[Gaps]) {
        self.measured.add(phase, gaps);
    }

    /// Takes the token drawn in the oldest step under way; says whether it is an end-of-sequence one that counts, and why the request ends with it,
    /// if it does.
    pub fn take(&mut self, token: u32, eos: &[u32], now: Instant) -> (bool, Option<(FinishReason, Option<String>)>) {
        let at = self.tokens.len() - self.unseen;
        self.tokens[at] = token;
        self.unseen -= 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        let request = &self.arrival.request;
        let is_eos = !request.ignore_eos && eos.contains(&token);
        let full = at + 1 - self.prompt >= request.max_tokens as usize;
        if is_eos {
            return (true, Some((FinishReason::Eos, None)));
        }
        let end = match self.steer.take(token) {
            Ok(true) => Some((FinishReason::Eos, None)),
            _ if full => Some((FinishReason::Length, None)),
            Ok(false) => None,
            Err(error) => Some((FinishReason::Error, Some(error.to_string()))),
        };
        if end.is_none() && self.steer.follows() {
            self.sampling.edits = self.steer.edits();
        }
        (false, end)
    }

    /// How far it is.
    pub fn progress(&self, now: Instant) -> Progress {
        Progress {
            stage: if self.phase() == Phase::Prefill { Stage::Prefill } else { Stage::Decode },
            prompt_tokens: self.prompt as u32,
            prefilled: self.cached.min(self.prompt) as u32,
            generated: (self.tokens.len() - self.unseen - self.prompt) as u32,
            pages: self.pages.pages().len() as u32,
            waited: self.admitted.saturating_duration_since(self.arrival.at),
            decoding: self.first_token.map_or(Duration::ZERO, |first| now.saturating_duration_since(first)),
            ..waiting(self.id, &self.arrival, now)
        }
    }

    /// Its terminal event.
    pub fn finish(&self, reason: FinishReason, detail: Option<String>, now: Instant) -> Finished {
        let phase_usage = |phase: Phase| {
            let table = self.tables.phase(phase).cloned();
            let row = match (&table, phase) {
                (Some(t), Phase::Prefill) => {
                    t.table.ln_lambda(self.prompt).and_then(|_| t.table.row_at(self.prompt)).map(|i| t.table.rows()[i])
                }
                _ => None,
            };
            PhaseUsage { table, row: row.map(|r| (r.first_length, r.s)), counters: self.counters[phase as usize] }
        };
        let between = |a: Instant, b: Instant| b.saturating_duration_since(a);
        let usage = Usage {
            prompt_tokens: self.prompt as u32,
            completion_tokens: (self.tokens.len() - self.unseen - self.prompt) as u32,
            reused_tokens: self.beginning.reused() as u32,
            prefill: phase_usage(Phase::Prefill),
            decode: phase_usage(Phase::Decode),
            queue_time: between(self.arrival.at, self.admitted),
            prefill_time: between(self.admitted, self.first_token.unwrap_or(now)),
            decode_time: self.first_token.zip(self.last_token).map_or(Duration::ZERO, |(a, b)| between(a, b)),
        };
        let measured = self.arrival.request.measure.then(|| Arc::new(self.measured.clone()));
        Finished { reason, detail, usage, measured }
    }
}

/// A request that waits.
pub(super) fn waiting(id: RequestId, arrival: &Arrival, now: Instant) -> Progress {
    let request = &arrival.request;
    Progress {
        id,
        client: request.client,
        priority: request.priority,
        stage: Stage::Waiting,
        prompt_tokens: request.prompt.len() as u32,
        prefilled: 0,
        generated: 0,
        max_tokens: request.max_tokens,
        pages: 0,
        waited: now.saturating_duration_since(arrival.at),
        decoding: Duration::ZERO,
    }
}

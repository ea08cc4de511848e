//! What a step carries from `begin_step` to `sample`: the sequences, owned, and where their rows are.

use crate::attention::{AttnSeq, SkipCounters};
use crate::backend::{KernelError, SeqStep};
use crate::gaps::Gaps;
use crate::pages::PAGE;
use crate::sampling::SamplingParams;
use skip_tables::{Phase, ScaleTable};

/// One sequence of the step.
pub struct Seq {
    /// First row in the step.
    pub row: usize,
    /// Rows: tokens of this step.
    pub len: usize,
    /// Absolute position of the first row.
    pub start: usize,
    /// Which kernel.
    pub phase: Phase,
    /// Threshold, None for dense.
    pub ln_lambda: Option<f32>,
    /// Pages, in `Step::pages`.
    pages: std::ops::Range<usize>,
    /// How to draw from the last row, where wanted.
    pub sample: Option<SamplingParams>,
    /// Votes are told by gap.
    pub measure: bool,
}

/// The step in progress.
#[derive(Default)]
pub struct Step {
    /// Numbers the steps, so that what is prepared once a step is known to be fresh.
    pub number: u64,
    /// Sequences, in the caller's order.
    pub seqs: Vec<Seq>,
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Absolute position of each row.
    pub positions: Vec<usize>,
    /// Votes so far, one a sequence.
    pub counters: Vec<SkipCounters>,
    /// Votes by gap so far, one a layer.
    pub gaps: Vec<Gaps>,
    /// Seconds in attention so far.
    pub attention_seconds: f64,
    /// Rows the next operator works on: all, or after `last_rows` one a sampling sequence.
    pub rows: usize,
    /// The highest page of the step.
    pub last_page: Option<u32>,
    /// Behind the step's highest position.
    pub end: usize,
    pages: Vec<u32>,
}

impl Step {
    /// Replaces the step.
    pub fn begin(&mut self, seqs: &[SeqStep<'_>], tables: &[Option<ScaleTable>]) -> Result<(), KernelError> {
        self.number += 1;
        self.seqs.clear();
        self.tokens.clear();
        self.positions.clear();
        self.counters.clear();
        self.gaps.clear();
        self.pages.clear();
        (self.attention_seconds, self.last_page, self.end) = (0.0, None, 0);
        for (i, seq) in seqs.iter().enumerate() {
            let len = seq.tokens.len();
            let end = seq.start + len;
            let invalid = |what: &str| Err(KernelError::Invalid(format!("sequence {i} of the step: {what}")));
            if len == 0 {
                return invalid("no tokens");
            }
            if seq.block_table.len() * PAGE < end {
                return invalid("the block table is too short");
            }
            if seq.measure && seqs.len() != 1 {
                return invalid("it measures, beside others");
            }
            if seq.phase == Phase::Decode && len != 1 {
                return invalid("decode takes one token");
            }
            let ln_lambda = match seq.table {
                None => None,
                Some(_) if seq.measure => None,
                Some(slot) => match tables.get(usize::from(slot.0)) {
                    Some(Some(table)) => table.ln_lambda(seq.final_len),
                    _ => return invalid("its table slot is empty"),
                },
            };
            let pages = self.pages.len()..self.pages.len() + end.div_ceil(PAGE);
            let block_table = &seq.block_table[..pages.len()];
            self.pages.extend_from_slice(block_table);
            self.last_page = self.last_page.max(block_table.iter().copied().max());
            self.end = self.end.max(end);
            self.seqs.push(Seq {
                row: self.tokens.len(),
                len,
                start: seq.start,
                phase: seq.phase,
                ln_lambda,
                pages,
                sample: seq.sample.cloned(),
                measure: seq.measure,
            });
            self.tokens.extend_from_slice(seq.tokens);
            self.positions.extend(seq.start..end);
        }
        self.rows = self.tokens.len();
        self.counters.resize(seqs.len(), SkipCounters::default());
        Ok(())
    }

    /// Pages of a sequence, those of this step's tokens included.
    pub fn pages(&self, seq: &Seq) -> &[u32] {
        &self.pages[seq.pages.clone()]
    }

    /// The step's sequence tells its votes by gap.
    pub fn measures(&self) -> bool {
        self.seqs.iter().any(|seq| seq.measure)
    }

    /// Sequences of one phase as attention takes them, with their places in the step.
    pub fn attention(&self, phase: Phase) -> (Vec<AttnSeq<'_>>, Vec<usize>) {
        let of_phase = |(i, seq): (usize, &Seq)| (seq.phase == phase).then_some(i);
        let places: Vec<usize> = self.seqs.iter().enumerate().filter_map(of_phase).collect();
        let seqs = places.iter().map(|&i| {
            let seq = &self.seqs[i];
            AttnSeq {
                row: seq.row,
                q_len: seq.len,
                q_start: seq.start,
                kv_len: seq.start + seq.len,
                block_table: self.pages(seq),
                ln_lambda: seq.ln_lambda,
            }
        });
        (seqs.collect(), places)
    }
}

//! The step on the device: everything that differs from step to step, in one block of memory that its first kernel fetches from the host's.
//!
//! Where things lie follows from the padded numbers of rows and sequences alone, so that a recorded graph finds them again; how much there is to
//! fetch the block says itself.

use super::cubins::Cubins;
use super::device::Device;
use super::edits::{Block, Edits};
use super::ends::{self, AT_ONCE, VECTOR};
use super::flight::MOST;
use super::graph::Skipping;
use super::memory::{DeviceBuffer, Pinned};
use super::params::{Counters, Seq, Table};
use super::sampler::{Drawn, SampleParams};
use crate::backend::{KernelError, SeqStep, unseen};
use crate::pages::PAGE;
use crate::step::Step;
use bytemuck::Pod;
use skip_tables::{Phase, ScaleTable};

/// Table slots in device memory, and behind them as many places for the rows in force of tables too long for a slot.
pub(super) const TABLE_SLOTS: usize = 2048;

/// Most rows of a decode step that is recorded; also the padded sizes there are.
pub(super) const BUCKETS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A part of the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    offset: usize,
    bytes: usize,
}

impl Part {
    /// Bytes from the block's start.
    pub fn offset(self) -> usize {
        self.offset
    }
}

/// Where things lie in the block, behind its head. Votes and draws, which go back to the host, lie side by side. Block tables are last but for
/// masks and biases: they are as long as the sequences are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub tokens: Part,
    pub positions: Part,
    pub slots: Part,
    pub tails: Part,
    /// Row of each sampling sequence's last token, −1 for padding.
    pub last: Part,
    pub sampling: Part,
    pub prefill: Part,
    pub decode: Part,
    pub prefill_counters: Part,
    pub decode_counters: Part,
    pub drawn: Part,
    pub work: Part,
    /// Of each sampling sequence, where its edits lie in `edited`; nothing where none has any.
    pub edits: Part,
    pub pages: Part,
    /// Masks and biases.
    pub edited: Part,
}

/// One phase's sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseSeqs {
    /// As attention takes them.
    pub seqs: Vec<Seq>,
    /// Their places in the step.
    pub places: Vec<usize>,
    /// Sequences of the launch, padding included.
    pub padded: usize,
    /// Which of them skip.
    pub skipping: Option<Skipping>,
    /// Keys of those that do.
    pub skippable: usize,
}

/// Where a phase's launch finds its sequences.
#[derive(Clone, Copy)]
pub(super) struct Launches {
    pub seqs: u64,
    pub counters: u64,
    pub pages: u64,
    /// Prefill's work list, and its entries.
    pub work: u64,
    pub entries: usize,
}

/// The step in progress.
pub(super) struct StepBlock {
    pub step: Step,
    pub layout: Layout,
    /// Rows of the launches, padding included.
    pub rows: usize,
    /// Sampling sequences, padding included.
    pub samples: usize,
    pub prefill: PhaseSeqs,
    pub decode: PhaseSeqs,
    /// Prefill work entries.
    pub work: usize,
    block: DeviceBuffer,
    /// One for each step that may be under way.
    staging: [Pinned; MOST],
    turn: usize,
    filled: usize,
    /// A step's inputs may still be on their way, though nobody waits for the step.
    fetching: bool,
    pages: Vec<i32>,
}

/// Lays parts one after another, each on a whole vector.
struct Layouter(usize);

impl Layouter {
    fn part<T>(&mut self, count: usize) -> Part {
        let part = Part { offset: self.0, bytes: count * size_of::<T>() };
        self.0 = (part.offset + part.bytes).next_multiple_of(VECTOR);
        part
    }
}

impl StepBlock {
    /// An empty block; it grows with the steps.
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        const FIRST: usize = 256 * AT_ONCE;
        Ok(Self {
            step: Step::default(),
            layout: Layout::default(),
            rows: 0,
            samples: 0,
            prefill: PhaseSeqs::default(),
            decode: PhaseSeqs::default(),
            work: 0,
            block: DeviceBuffer::zeroed(device, FIRST, "the step's inputs")?,
            staging: [Pinned::new(device, FIRST)?, Pinned::new(device, FIRST)?],
            turn: 0,
            filled: 0,
            fetching: false,
            pages: Vec::new(),
        })
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// The padded size of a step that can be recorded: decode alone, every sequence sampling.
    pub fn bucket(seqs: &[SeqStep<'_>]) -> Option<usize> {
        let alone = seqs.iter().all(|s| s.phase == Phase::Decode && s.tokens.len() == 1 && s.sample.is_some());
        BUCKETS.into_iter().find(|&b| alone && !seqs.is_empty() && b >= seqs.len())
    }

    /// Decoding sequences a launch is made for: few different numbers, since each has a workspace of its own.
    pub fn padded(decoding: usize) -> usize {
        BUCKETS.into_iter().find(|&b| b >= decoding).unwrap_or(decoding)
    }

    /// Replaces the step by one with this number, in place `turn`, whose step before is finished. Returns whether the block has moved: nothing
    /// recorded before holds then.
    pub fn begin(
        &mut self,
        device: &Device,
        (turn, number): (usize, u32),
        seqs: &[SeqStep<'_>],
        tables: &[Option<ScaleTable>],
    ) -> Result<bool, KernelError> {
        if std::mem::take(&mut self.fetching) {
            // The step before was given up, and is not to find this one's inputs.
            device.synchronize()?;
        }
        self.step.begin(seqs, tables)?;
        let rows = self.step.rows;
        let bucket = Self::bucket(seqs);
        self.rows = bucket.unwrap_or(rows);
        let sampling: Vec<usize> = (0..seqs.len()).filter(|&i| seqs[i].sample.is_some()).collect();
        self.samples = bucket.unwrap_or(sampling.len());

        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        phase_seqs(&self.step, seqs, Phase::Prefill, tables, &mut pages, &mut self.prefill);
        phase_seqs(&self.step, seqs, Phase::Decode, tables, &mut pages, &mut self.decode);
        let work = work_list(&self.prefill.seqs);
        self.work = work.len();
        let edits = Block::new(sampling.iter().map(|&i| self.step.seqs[i].sample.as_ref().and_then(|params| params.edits.as_deref())));

        let mut l = Layouter(VECTOR);
        let layout = Layout {
            tokens: l.part::<i32>(self.rows),
            positions: l.part::<i32>(self.rows),
            slots: l.part::<i32>(self.rows),
            tails: l.part::<i32>(self.rows),
            last: l.part::<i32>(self.samples),
            sampling: l.part::<SampleParams>(self.samples),
            prefill: l.part::<Seq>(self.prefill.padded),
            decode: l.part::<Seq>(self.decode.padded),
            prefill_counters: l.part::<Counters>(self.prefill.padded),
            decode_counters: l.part::<Counters>(self.decode.padded),
            drawn: l.part::<Drawn>(self.samples),
            work: l.part::<[i32; 2]>(work.len()),
            edits: l.part::<Edits>(if edits.is_empty() { 0 } else { self.samples }),
            pages: l.part::<i32>(pages.len()),
            edited: l.part::<u32>(edits.words.len()),
        };
        self.layout = layout;
        let moved = self.reserve(device, l.0)?;

        let (slots, tails) = slots_and_tails(&self.step);
        let last = sampling.iter().map(|&i| (self.step.seqs[i].row + self.step.seqs[i].len - 1) as i32);
        let params = sampling.iter().filter_map(|&i| {
            let seq = &self.step.seqs[i];
            seq.sample.as_ref().map(|params| SampleParams::new(params, seq.start + seq.len, i))
        });
        (self.turn, self.filled) = (turn, l.0);
        let bytes = self.staging[turn].bytes_mut();
        // The words' own place moves with the block tables; a recorded step finds them from the block's beginning.
        let edited_rows = edits.rows(layout.edited.offset / size_of::<u32>());
        bytes[..layout.pages.offset].fill(0);
        bytes[..VECTOR].copy_from_slice(bytemuck::cast_slice(&ends::head(number, l.0)));
        write(bytes, layout.tokens, self.step.tokens.iter().map(|&token| device_token(token)), 0);
        write(bytes, layout.positions, self.step.positions.iter().map(|&p| p as i32), 0);
        write(bytes, layout.slots, slots.into_iter(), -1);
        write(bytes, layout.tails, tails.into_iter(), 0);
        write(bytes, layout.last, last, -1);
        write(bytes, layout.sampling, params, SampleParams::default());
        write(bytes, layout.prefill, self.prefill.seqs.iter().copied(), Seq::default());
        write(bytes, layout.decode, self.decode.seqs.iter().copied(), Seq::default());
        write(bytes, layout.work, work.into_iter(), [-1, 0]);
        write(bytes, layout.edits, edited_rows, Edits::default());
        write(bytes, layout.pages, pages.iter().copied(), 0);
        write(bytes, layout.edited, edits.words.iter().copied(), 0);
        self.pages = pages;
        Ok(moved)
    }

    /// Where the step's inputs come from, and where they go.
    pub fn ends(&self) -> [u64; 2] {
        [self.staging[self.turn].device_ptr(), self.block.ptr()]
    }

    /// Enqueues or records the way of the step's inputs.
    pub fn fetch(&mut self, device: &Device, cubins: &mut Cubins) -> Result<(), KernelError> {
        let [from, to] = self.ends();
        self.fetching = true;
        ends::fetch(device, cubins, from, to, self.filled)
    }

    /// Enqueues or records the way back to `to`, with the step's number in front.
    pub fn give_back(&self, device: &Device, cubins: &mut Cubins, to: u64) -> Result<(), KernelError> {
        ends::give_back(device, cubins, self.block.ptr(), self.back(), to)
    }

    /// The step is wholly enqueued: its inputs have arrived when it is finished.
    pub fn launched(&mut self) {
        self.fetching = false;
    }

    /// Makes room for `bytes`, and for more to come.
    fn reserve(&mut self, device: &Device, bytes: usize) -> Result<bool, KernelError> {
        if bytes <= self.block.bytes() {
            return Ok(false);
        }
        let bytes = (2 * bytes).next_multiple_of(AT_ONCE);
        device.synchronize()?;
        // All of it or none: what is recorded names the block that is there.
        let block = DeviceBuffer::zeroed(device, bytes, "the step's inputs")?;
        let staging = [Pinned::new(device, bytes)?, Pinned::new(device, bytes)?];
        (self.block, self.staging) = (block, staging);
        Ok(true)
    }

    /// One phase's sequences and where its launch finds them.
    pub fn launches(&self, phase: Phase) -> (&PhaseSeqs, Launches) {
        let (of_phase, seqs, counters) = match phase {
            Phase::Prefill => (&self.prefill, self.layout.prefill, self.layout.prefill_counters),
            Phase::Decode => (&self.decode, self.layout.decode, self.layout.decode_counters),
        };
        let (pages, work) = (self.at(self.layout.pages), self.at(self.layout.work));
        (of_phase, Launches { seqs: self.at(seqs), counters: self.at(counters), pages, work, entries: self.work })
    }

    /// The device address of the block.
    pub fn base(&self) -> u64 {
        self.block.ptr()
    }

    /// The device address of a part.
    pub fn at(&self, part: Part) -> u64 {
        self.block.ptr() + part.offset as u64
    }

    /// What goes back to the host: offset and length.
    pub fn back(&self) -> (usize, usize) {
        let from = self.layout.prefill_counters.offset;
        (from, self.layout.drawn.offset + self.layout.drawn.bytes - from)
    }

    /// Place in the step, and offset in what goes back, of each sequence's votes.
    pub fn voting(&self) -> impl Iterator<Item = (usize, usize)> {
        let (from, _) = self.back();
        let phases = [(&self.prefill, self.layout.prefill_counters), (&self.decode, self.layout.decode_counters)];
        phases.into_iter().flat_map(move |(phase, part)| {
            phase.places.iter().enumerate().map(move |(i, &place)| (place, part.offset - from + i * size_of::<Counters>()))
        })
    }

    /// Whether the logits of some row are edited.
    pub fn is_edited(&self) -> bool {
        self.layout.edits.bytes > 0
    }

    /// Whether every draw of the step is the most likely token, and nothing is reported beside it.
    pub fn is_greedy(&self) -> bool {
        let mut params = self.step.seqs.iter().filter_map(|seq| seq.sample.as_ref());
        params.all(|p| p.temperature <= 0.0 && p.logprobs.is_none())
    }
}

fn write<T: Pod>(bytes: &mut [u8], part: Part, values: impl Iterator<Item = T>, padding: T) {
    let places = bytes[part.offset..part.offset + part.bytes].chunks_exact_mut(size_of::<T>());
    for (place, value) in places.zip(values.chain(std::iter::repeat(padding))) {
        place.copy_from_slice(bytemuck::bytes_of(&value));
    }
}

fn phase_seqs(step: &Step, seqs: &[SeqStep<'_>], phase: Phase, tables: &[Option<ScaleTable>], pages: &mut Vec<i32>, out: &mut PhaseSeqs) {
    out.places.clear();
    out.seqs.clear();
    out.skippable = 0;
    for (place, seq) in step.seqs.iter().enumerate().filter(|(_, seq)| seq.phase == phase) {
        out.places.push(place);
        out.seqs.push(Seq {
            row: seq.row as i32,
            q_len: seq.len as i32,
            q_start: seq.start as i32,
            kv_len: (seq.start + seq.len) as i32,
            final_len: seqs[place].final_len as i32,
            table: table_place(place, &seqs[place], tables),
            pages: pages.len() as i32,
            pad: 0,
        });
        if seq.ln_lambda.is_some() {
            out.skippable += seq.start + seq.len;
        }
        pages.extend(step.pages(seq).iter().map(|&page| page as i32));
    }
    out.padded = if phase == Phase::Decode && !out.seqs.is_empty() { StepBlock::padded(out.seqs.len()) } else { out.seqs.len() };
    out.skipping = skipping(out.places.iter().map(|&place| step.seqs[place].ln_lambda.is_some()));
}

/// Where the device finds a sequence's table. One with more rows than a slot holds is not there as a whole: the row in force is, for this
/// step, in a place that belongs to the sequence's place in the step.
fn table_place(place: usize, seq: &SeqStep<'_>, tables: &[Option<ScaleTable>]) -> i32 {
    let Some(slot) = seq.table else { return -1 };
    let long = tables.get(usize::from(slot.0)).and_then(Option::as_ref).is_some_and(|table| !Table::holds(table));
    if long { (TABLE_SLOTS + place) as i32 } else { i32::from(slot.0) }
}

/// A token as the embedding takes it: one that nobody has seen is −1 − its place among those drawn last.
fn device_token(token: u32) -> i32 {
    unseen(token).map_or(token as i32, |place| -1 - place as i32)
}

/// Which of a phase's sequences skip; None where there are none.
pub(super) fn skipping(seqs: impl Iterator<Item = bool>) -> Option<Skipping> {
    let (mut skip, mut dense) = (false, false);
    seqs.for_each(|skips| if skips { skip = true } else { dense = true });
    match (skip, dense) {
        (false, false) => None,
        (false, true) => Some(Skipping::None),
        (true, false) => Some(Skipping::All),
        (true, true) => Some(Skipping::Some),
    }
}

/// (sequence, query tile), those with most keys first.
pub(super) fn work_list(seqs: &[Seq]) -> Vec<[i32; 2]> {
    let page = PAGE as i32;
    let mut work = Vec::new();
    for (i, seq) in seqs.iter().enumerate() {
        if seq.q_len == 0 {
            continue;
        }
        let first = seq.q_start / page;
        let tiles = (seq.q_start + seq.q_len - 1) / page - first + 1;
        work.extend((0..tiles).map(|tile| (first + tile, [i as i32, tile])));
    }
    work.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
    work.into_iter().map(|(_, entry)| entry).collect()
}

/// Where each row's K and V go, and from which row on its V page is to be zeroed: behind the last row of a chunk, and behind the first of
/// a page in decode; later tokens of the page overwrite zeros.
fn slots_and_tails(step: &Step) -> (Vec<i32>, Vec<i32>) {
    let mut slots = Vec::with_capacity(step.tokens.len());
    let mut tails = Vec::with_capacity(step.tokens.len());
    for seq in &step.seqs {
        let pages = step.pages(seq);
        for at in seq.start..seq.start + seq.len {
            let offset = at % PAGE;
            slots.push((pages[at / PAGE] as usize * PAGE + offset) as i32);
            let ends = at + 1 == seq.start + seq.len && (seq.phase == Phase::Prefill || offset == 0);
            tails.push(if ends && offset + 1 < PAGE { offset as i32 + 1 } else { 0 });
        }
    }
    (slots, tails)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tokens: &[u32], start: usize, phase: Phase, pages: &[u32]) -> Step {
        let mut step = Step::default();
        let seq = SeqStep {
            tokens,
            start,
            final_len: start + tokens.len(),
            phase,
            table: None,
            block_table: pages,
            sample: None,
            measure: false,
        };
        step.begin(&[seq], &[]).unwrap();
        step
    }

    #[test]
    fn a_chunk_zeroes_behind_its_last_row_and_decode_behind_a_page_s_first() {
        let tokens = vec![1; 130];
        let (slots, tails) = slots_and_tails(&step(&tokens, 128, Phase::Prefill, &[7, 3, 5]));
        assert_eq!((slots[0], slots[127], slots[128], slots[129]), (3 * 128, 3 * 128 + 127, 5 * 128, 5 * 128 + 1));
        assert_eq!(tails.iter().enumerate().filter(|(_, t)| **t != 0).collect::<Vec<_>>(), [(129, &2)]);
        assert_eq!(slots_and_tails(&step(&[1], 128, Phase::Decode, &[7, 3])), (vec![3 * 128], vec![1]));
        assert_eq!(slots_and_tails(&step(&[1], 130, Phase::Decode, &[7, 3])), (vec![3 * 128 + 2], vec![0]));
        assert_eq!(slots_and_tails(&step(&tokens[..128], 0, Phase::Prefill, &[7])).1, [0; 128], "a full page has no tail");
    }

    #[test]
    fn the_longest_tiles_come_first() {
        let seq = |q_start, q_len| Seq { q_start, q_len, kv_len: q_start + q_len, ..Seq::default() };
        assert_eq!(work_list(&[seq(0, 200), seq(256, 128), seq(0, 0)]), [[1, 0], [0, 1], [0, 0]]);
        assert_eq!(work_list(&[seq(100, 60)]), [[0, 1], [0, 0]], "tiles are anchored at absolute positions");
    }

    #[test]
    fn steps_that_may_be_recorded() {
        let greedy = crate::sampling::SamplingParams::default();
        let seq =
            |phase, sample| SeqStep { tokens: &[1], start: 5, final_len: 6, phase, table: None, block_table: &[0], sample, measure: false };
        let decode = seq(Phase::Decode, Some(&greedy));
        assert_eq!(StepBlock::bucket(&vec![decode.clone(); 5]), Some(8));
        assert_eq!(StepBlock::bucket(&vec![decode.clone(); 65]), None);
        assert_eq!(StepBlock::bucket(&[]), None);
        assert_eq!(StepBlock::bucket(&[decode.clone(), seq(Phase::Prefill, Some(&greedy))]), None);
        assert_eq!(StepBlock::bucket(&[decode, seq(Phase::Decode, None)]), None);
    }

    #[test]
    fn a_long_table_is_found_at_the_sequence_s_own_place() {
        let table = |rows: u32| Some(ScaleTable::new((1..=rows).map(|n| (n * 10, 1.0).into()).collect(), None).unwrap());
        let tables = [table(64), table(65), None];
        let seq = |slot: Option<u16>| SeqStep {
            tokens: &[1],
            start: 5,
            final_len: 6,
            phase: Phase::Decode,
            table: slot.map(crate::backend::TableSlot),
            block_table: &[0],
            sample: None,
            measure: false,
        };
        assert_eq!(table_place(3, &seq(None), &tables), -1);
        assert_eq!(table_place(3, &seq(Some(0)), &tables), 0);
        assert_eq!(table_place(3, &seq(Some(1)), &tables), TABLE_SLOTS as i32 + 3);
    }

    #[test]
    fn an_unseen_token_points_at_the_draws() {
        assert_eq!([7, crate::backend::drawn_by(0), crate::backend::drawn_by(5)].map(device_token), [7, -1, -6]);
    }

    #[test]
    fn launches_are_for_few_numbers_of_sequences() {
        assert_eq!([1, 2, 3, 5, 33, 64, 70].map(StepBlock::padded), [1, 2, 4, 8, 64, 64, 70]);
    }

    #[test]
    fn which_sequences_skip() {
        let of = |seqs: &[bool]| skipping(seqs.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[false, false]), Some(Skipping::None));
        assert_eq!(of(&[true]), Some(Skipping::All));
        assert_eq!(of(&[true, false]), Some(Skipping::Some));
    }
}

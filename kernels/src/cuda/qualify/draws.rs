//! Drawing tokens, against the host sampler: the same tokens, and log-probabilities to rounding.

use super::super::attend::Attend;
use super::super::edits::{Block, Edit, edit as enqueue};
use super::super::sampler::{DRAWN_BYTES, Draw, SampleParams, Sampler, sampled};
use super::rig::{AGAIN, shortest};
use super::{Failure, agree, numbers};
use crate::cpu::sampler::sample;
use crate::sampling::{LogitEdits, SamplingParams};

const VOCAB: usize = 5003;

/// How the rows draw.
fn rows(greedy: bool) -> Vec<SamplingParams> {
    let plain = SamplingParams::default();
    if greedy {
        return vec![plain; 3];
    }
    vec![
        SamplingParams { logprobs: Some(5), ..plain.clone() },
        SamplingParams { temperature: 0.8, seed: 7, logprobs: Some(0), ..plain.clone() },
        SamplingParams { temperature: 1.2, top_k: 40, seed: 8, ..plain.clone() },
        SamplingParams { temperature: 1.0, top_p: 0.9, min_p: 0.01, seed: 9, logprobs: Some(20), ..plain },
    ]
}

pub(super) fn run(on: &mut Attend, greedy: bool) -> Result<f32, Failure> {
    let params = rows(greedy);
    let position = |row: usize| 100 + row;
    let logits: Vec<f32> = numbers(params.len() * VOCAB, 31).into_iter().map(|x| 3.0 * x).collect();
    let device_logits = on.up(&logits)?;
    let device_params = on.up(&params.iter().enumerate().map(|(row, p)| SampleParams::new(p, position(row), row)).collect::<Vec<_>>())?;
    let drawn = on.blank(params.len() * DRAWN_BYTES)?;
    let sampler = Sampler::new(&on.device, params.len())?;
    let draw =
        Draw { logits: device_logits.ptr(), vocab: VOCAB, params: device_params.ptr(), rows: params.len(), drawn: drawn.ptr(), greedy };
    sampler.draw(&on.device, &mut on.cubins, draw)?;
    let back = on.down(&drawn, params.len() * DRAWN_BYTES)?;
    for (row, params) in params.iter().enumerate() {
        let found = sampled(&back[row * DRAWN_BYTES..][..DRAWN_BYTES]);
        let want = sample(&logits[row * VOCAB..][..VOCAB], params, position(row));
        let ids = |top: &[(u32, f32)]| top.iter().map(|&(id, _)| id).collect::<Vec<u32>>();
        if found.token != want.token || ids(&found.top) != ids(&want.top) {
            return Err(Failure::Differs(format!("row {row} drew {} for {}, or other likely tokens", found.token, want.token)));
        }
        let logprobs =
            |drawn: &crate::sampling::Sampled| drawn.logprob.into_iter().chain(drawn.top.iter().map(|t| t.1)).collect::<Vec<f32>>();
        let want: Vec<f64> = logprobs(&want).into_iter().map(f64::from).collect();
        agree("log-probabilities", &logprobs(&found), &want, 1e-4)?;
    }
    Ok(shortest(&on.device, AGAIN, || sampler.draw(&on.device, &mut on.cubins, draw))?)
}

/// Rows with a mask, with biases, with both, and one that stays as it is: every logit as the host's.
pub(super) fn edit(on: &mut Attend) -> Result<f32, Failure> {
    let words: Vec<u32> = (0..VOCAB.div_ceil(32) as u32 - 3).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x5555_1234).collect();
    let added: Vec<(u32, f32)> = (0..700).map(|i| (i * 7, i as f32 / 16.0 - 20.0)).chain([(VOCAB as u32, 1.0)]).collect();
    let rows = [
        Some(LogitEdits { allowed: Some(words.clone()), added: Vec::new() }),
        None,
        Some(LogitEdits { allowed: None, added: added.clone() }),
        Some(LogitEdits { allowed: Some(words), added }),
    ];
    let block = Block::new(rows.iter().map(Option::as_ref));
    let logits: Vec<f32> = numbers(rows.len() * VOCAB, 37);
    let (edits, words) = (on.up(&block.rows(0).collect::<Vec<_>>())?, on.up(&block.words)?);
    let change = |logits: u64| Edit { logits, vocab: VOCAB, rows: rows.len(), edits: edits.ptr(), words: words.ptr() };
    let device_logits = on.up(&logits)?;
    enqueue(&on.device, &mut on.cubins, change(device_logits.ptr()))?;
    let found = on.floats(&device_logits, logits.len())?;
    for (row, edits) in rows.iter().enumerate() {
        let before = &logits[row * VOCAB..][..VOCAB];
        let want = edits.as_ref().map_or_else(|| before.to_vec(), |edits| edits.applied(before));
        let differs = |(found, want): (&f32, &f32)| found.to_bits() != want.to_bits();
        if let Some(id) = found[row * VOCAB..][..VOCAB].iter().zip(&want).position(differs) {
            return Err(Failure::Differs(format!("row {row}: logit {id} is {} for {}", found[row * VOCAB + id], want[id])));
        }
    }
    Ok(shortest(&on.device, AGAIN, || enqueue(&on.device, &mut on.cubins, change(device_logits.ptr())))?)
}

//! Drawing tokens, against the host sampler: the same tokens, and log-probabilities to rounding.

use super::super::attend::Attend;
use super::super::sampler::{DRAWN_BYTES, Draw, SampleParams, Sampler, sampled};
use super::rig::{AGAIN, shortest};
use super::{Failure, agree, numbers};
use crate::cpu::sampler::sample;
use crate::sampling::SamplingParams;

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

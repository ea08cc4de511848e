//! Whether an update's tables are good on this device: they skip some and not all, answer nearly as dense does, are not slower, and find what RULER hides.

use super::Job;
use super::calibrate::Texts;
use super::evaluate;
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use serde_json::json;
use skip_client::protocol::EvaluateOptions;
use skip_client::{Error, ErrorKind};
use skip_engine::ask::{Answer, AskError, ask};
use skip_engine::evaluate::statistics::Verdict;
use skip_engine::handle::{ClientId, PhaseUsage, Priority, Request, TableSet};
use skip_engine::regular::NEVER;
use skip_kernels::sampling::{Sampled, SamplingParams};
use skip_tables::Phase;

/// Rounds that count; one more warms up.
const ROUNDS: usize = 3;
/// Rounds where the tables seem slow.
const MOST_ROUNDS: usize = 12;
/// Tokens of an answer: decode votes on each but the first.
const DRAWN: u32 = 9;
/// Most likely tokens that are compared.
const TOP: u8 = 8;
/// Longest time to the first token, against dense's.
const SLOWEST: f64 = 1.25;
/// Largest mean difference of log-probabilities, in nats, between dense's and the tables' answers.
const FARTHEST: f64 = 1.0;
/// Most tokens of a prompt it is tried on: a trial is no benchmark.
const LONGEST: usize = 8192;
/// RULER's tasks, and items of each.
const TASKS: [&str; 2] = ["niah_single_1", "niah_multikey_1"];
const SAMPLES: usize = 2;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Good, with what was measured.
    Good(String),
    /// Not good, and why.
    Bad(String),
    /// The daemon is ending: nobody knows.
    Unknown,
}

/// Measures the update on trial, and ends the job.
pub fn run(daemon: &Daemon, job: &Job) -> Outcome {
    let draining = || daemon.life.stage() == Stage::Draining;
    let outcome = match measure(daemon, job, &|| job.is_cancelled() || draining()) {
        Ok(found) => Outcome::Good(found),
        Err(_) if draining() => Outcome::Unknown,
        Err(Trouble::Bad(reason)) => Outcome::Bad(reason),
        Err(Trouble::Failed(error)) if error.kind == ErrorKind::Cancelled => Outcome::Bad("taken back while it was measured".into()),
        Err(Trouble::Failed(error)) => Outcome::Bad(format!("it could not be measured: {error}")),
    };
    job.finish(match &outcome {
        Outcome::Good(found) => Ok(json!({"verdict": "good", "found": found})),
        Outcome::Bad(reason) => Ok(json!({"verdict": "bad", "found": reason})),
        Outcome::Unknown => Err(Error::new(ErrorKind::Cancelled, "the daemon is ending")),
    });
    outcome
}

enum Trouble {
    Bad(String),
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn measure(daemon: &Daemon, job: &Job, cancelled: &dyn Fn() -> bool) -> Result<String, Trouble> {
    let model = daemon.ready_model()?;
    let tables = model.tables.of_update().map_err(|why| Trouble::Bad(format!("its tables are not used here: {why}")))?;
    let longest = (model.engine.longest_request() as usize).saturating_sub(DRAWN as usize).min(LONGEST);
    let Some(length) = length(&tables, longest) else {
        return Ok(format!("its tables skip at no length up to {longest} tokens, so that there was nothing to measure"));
    };
    job.advance(format!("dense and skipping in turn at {length} tokens"), 0.0);
    let prompt = prompt(daemon, &model, length)?;
    let (mut dense_ms, mut own_ms, mut answers) = (Vec::new(), Vec::new(), None);
    for round in 0..=MOST_ROUNDS {
        job.advance(format!("dense and skipping in turn at {length} tokens"), 0.5 * round.min(ROUNDS) as f64 / (ROUNDS + 1) as f64);
        let dense = answer(&model, &prompt, &TableSet::default(), cancelled)?;
        let own = answer(&model, &prompt, &tables, cancelled)?;
        if round > 0 {
            dense_ms.push(first_token_ms(&dense));
            own_ms.push(first_token_ms(&own));
        }
        answers = Some((dense, own));
        // Other work on the machine comes and goes: before the tables are called slow, they are given more rounds.
        if round >= ROUNDS && best(&own_ms) <= SLOWEST * best(&dense_ms) {
            break;
        }
    }
    let (dense, own) = answers.ok_or_else(|| Error::new(ErrorKind::Internal, "nothing was measured"))?;
    let mut found = vec![format!("{length} tokens")];
    for (phase, usage, at) in
        [(Phase::Prefill, &own.finished.usage.prefill, length), (Phase::Decode, &own.finished.usage.decode, length + DRAWN as usize - 1)]
    {
        found.extend(skipped(phase, usage, &tables, at).map_err(Trouble::Bad)?);
    }
    let apart = apart(&dense.sampled, &own.sampled);
    if apart > FARTHEST || apart.is_nan() {
        return Err(Trouble::Bad(format!("its answers are {apart:.2} nats from dense's, and may be {FARTHEST:.2}")));
    }
    found.push(format!("answers {apart:.3} nats from dense's"));
    let (dense, own) = (best(&dense_ms), best(&own_ms));
    if own > SLOWEST * dense {
        return Err(Trouble::Bad(format!("the first token takes {own:.0} ms, dense {dense:.0} ms: more than {SLOWEST} times as long")));
    }
    found.push(format!("first token after {own:.0} ms, dense {dense:.0} ms"));
    job.advance(format!("RULER at {length} tokens"), 0.5);
    found.push(ruler(daemon, job, &tables, length)?);
    Ok(found.join(", "))
}

/// A length at which every table that can skip within `longest` does: half as long again as the first such length of each, or as near as may be.
fn length(tables: &TableSet, longest: usize) -> Option<usize> {
    let firsts = Phase::ALL.into_iter().filter_map(|phase| tables.phase(phase)?.table.first_skippable_length());
    let first = firsts.filter(|&first| first <= longest).max()?;
    let last = Phase::ALL.into_iter().filter_map(|phase| Some(tables.phase(phase)?.table.max_len()? as usize)).min().unwrap_or(longest);
    // A few tiles at least: of a single one nothing can be left out.
    Some((first + first / 2).max(768).min(longest).min(last.saturating_sub(DRAWN as usize)).max(first))
}

/// Real text where the system has some, else a log that is made up.
fn prompt(daemon: &Daemon, model: &Model, length: usize) -> Result<Vec<u32>, Error> {
    let vocabulary = model.engine.model().vocabulary as usize;
    let real = Texts::of_corpus(&daemon.config.model, vocabulary, (&[], 0), NEVER)
        .map_err(|e| e.to_string())
        .and_then(|texts| texts.one(length, NEVER).map_err(|e| e.to_string()));
    match real {
        Ok(prompt) => Ok(prompt),
        Err(why) => {
            tracing::debug!("an update is tried on a made-up log: {why}");
            made_up(model, length)
        }
    }
}

fn made_up(model: &Model, length: usize) -> Result<Vec<u32>, Error> {
    let (parts, acts) =
        (["arm", "gripper", "lidar", "left wheel", "battery", "planner"], ["moved to", "reports", "waits at", "was reset at"]);
    let mut text = String::new();
    let mut tokens = Vec::new();
    for line in 0.. {
        let mixed = (line as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (part, act) = (parts[mixed as usize % parts.len()], acts[mixed as usize / 7 % acts.len()]);
        text.push_str(&format!("{line:05}: the {part} {act} {}.{}\n", mixed % 1000, mixed / 1000 % 10));
        if line % 64 == 63 {
            tokens = model.text.encode(&text)?;
            if tokens.len() >= length {
                break;
            }
        }
    }
    tokens.truncate(length);
    Ok(tokens)
}

fn answer(model: &Model, prompt: &[u32], tables: &TableSet, cancelled: &dyn Fn() -> bool) -> Result<Answer, Error> {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: DRAWN,
        sampling: SamplingParams { logprobs: Some(TOP), ..SamplingParams::default() },
        ignore_eos: true,
        priority: Priority::Background,
        deadline: None,
        client: ClientId(rustix::process::geteuid().as_raw()),
        tables: Some(tables.clone()),
        steering: Default::default(),
        reuse: false,
        measure: false,
    };
    ask(&model.engine, request, cancelled).map_err(|error| match error {
        AskError::Cancelled => Error::new(ErrorKind::Cancelled, "cancelled"),
        other => Error::new(ErrorKind::Internal, other.to_string()),
    })
}

fn first_token_ms(answer: &Answer) -> f64 {
    1e3 * answer.finished.usage.prefill_time.as_secs_f64()
}

/// What a phase skipped; wrong where a table that skips at this length skipped nothing, or everything.
fn skipped(phase: Phase, usage: &PhaseUsage, tables: &TableSet, length: usize) -> Result<Option<String>, String> {
    let skips = tables.phase(phase).is_some_and(|table| table.table.ln_lambda(length).is_some());
    let (votes, skipped) = (usage.counters.votes, usage.counters.skipped);
    if !skips {
        return Ok(None);
    }
    if skipped == 0 {
        return Err(format!("{phase} skipped nothing of {votes} at {length} tokens"));
    }
    if skipped >= votes {
        return Err(format!("{phase} skipped all of {votes} at {length} tokens"));
    }
    Ok(Some(format!("{phase} skipped {:.0} %", 100.0 * skipped as f64 / votes as f64)))
}

/// Mean difference of the log-probabilities of dense's tokens, for as long as both answers say the same, and of the first that differs.
/// A token that is not among the most likely there counts as the least likely of these.
fn apart(dense: &[Sampled], own: &[Sampled]) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for (dense, own) in dense.iter().zip(own) {
        let Some(expected) = dense.logprob else { break };
        let here = own.top.iter().find(|(token, _)| *token == dense.token).or(own.top.last()).map(|(_, logprob)| *logprob);
        let Some(here) = here.or(own.logprob) else { break };
        sum += f64::from((expected - here).abs());
        count += 1;
        if dense.token != own.token {
            break;
        }
    }
    sum / f64::from(count)
}

/// What else runs only adds to a time: the shortest tells most of the tables.
fn best(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

/// A few items of RULER, dense and under the tables. Where the system has no text to hide needles in, that is said.
fn ruler(daemon: &Daemon, job: &Job, tables: &TableSet, length: usize) -> Result<String, Trouble> {
    let options = EvaluateOptions {
        max_context: Some(length),
        samples: SAMPLES,
        tasks: TASKS.map(str::to_owned).to_vec(),
        ..EvaluateOptions::default()
    };
    let found = match evaluate::Work::with(daemon, options)?.under(tables.clone()).results(daemon, job, false) {
        Ok(found) => found,
        Err(error) if error.param.as_deref() == Some("corpus") => return Ok(format!("RULER not tried ({error})")),
        Err(error) => return Err(error.into()),
    };
    let mean = |scores: &[skip_engine::evaluate::statistics::ItemScore]| {
        scores.iter().map(|item| item.score).sum::<f64>() / scores.len().max(1) as f64
    };
    let means: Vec<String> =
        found.results.arms.iter().map(|arm| format!("{} {:.0} %", arm.arm.name(), 100.0 * mean(&arm.scores))).collect();
    let said = format!("RULER {}", means.join(", "));
    match found.verdict {
        Some(Verdict::Fail) => Err(Trouble::Bad(format!("{said}: the drop is beyond what is allowed"))),
        _ => Ok(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_engine::handle::NamedTable;
    use skip_kernels::attention::SkipCounters;
    use skip_tables::{Row, ScaleTable};
    use std::sync::Arc;

    fn table(rows: &[(u32, f32)], max: Option<u32>) -> Option<Arc<NamedTable>> {
        let rows = rows.iter().map(|&(first_length, s)| Row { first_length, s }).collect();
        let table = ScaleTable::new(rows, max).unwrap();
        Some(Arc::new(NamedTable { table, tier: None, origin: "update".into(), hash: String::new() }))
    }

    fn drawn(token: u32, top: &[(u32, f32)]) -> Sampled {
        Sampled { token, logprob: top.iter().find(|(t, _)| *t == token).map(|(_, p)| *p), top: top.to_vec() }
    }

    #[test]
    fn it_is_tried_where_it_skips_and_its_calibration_reaches() {
        let of = |prefill, decode, longest| length(&TableSet { prefill, decode }, longest);
        assert_eq!(of(table(&[(1024, 100.0)], Some(8192)), None, 4096), Some(1536));
        assert_eq!(of(table(&[(1024, 100.0)], Some(1400)), None, 4096), Some(1400 - DRAWN as usize));
        assert_eq!(of(table(&[(1024, 100.0)], None), table(&[(2048, 100.0)], None), 4096), Some(3072));
        assert_eq!(of(table(&[(1024, 100.0)], None), None, 512), None, "the context is too short for it");
    }

    #[test]
    fn a_table_that_skips_nothing_or_everything_is_bad() {
        let tables = TableSet { prefill: table(&[(1024, 100.0)], None), decode: None };
        let usage = |votes, skipped| PhaseUsage { counters: SkipCounters { votes, skipped, bytes_not_read: 0 }, ..PhaseUsage::default() };
        let of = |votes, skipped| skipped_of(&usage(votes, skipped), &tables);
        assert!(of(10, 0).unwrap_err().contains("skipped nothing"));
        assert!(of(10, 10).unwrap_err().contains("skipped all"));
        assert_eq!(of(10, 5).unwrap().unwrap(), "prefill skipped 50 %");
        assert_eq!(skipped(Phase::Decode, &usage(0, 0), &tables, 2048), Ok(None), "decode has no table");
        assert_eq!(skipped(Phase::Prefill, &usage(0, 0), &tables, 512), Ok(None), "below its first length it is dense");
    }

    fn skipped_of(usage: &PhaseUsage, tables: &TableSet) -> Result<Option<String>, String> {
        skipped(Phase::Prefill, usage, tables, 2048)
    }

    #[test]
    fn answers_are_compared_as_long_as_they_agree() {
        let dense = [drawn(1, &[(1, -0.5), (2, -1.5)]), drawn(3, &[(3, -0.2)]), drawn(9, &[(9, -5.0)])];
        assert_eq!(apart(&dense, &dense), 0.0);
        let own = [drawn(1, &[(1, -0.75), (2, -1.0)]), drawn(4, &[(4, -0.1), (3, -1.2)]), drawn(9, &[(9, 0.0)])];
        assert!((apart(&dense, &own) - (0.25 + 1.0) / 2.0).abs() < 1e-6);
        assert!(apart(&[], &[]).is_nan(), "no answer is no agreement");
    }
}

//! `evaluate`: the same items asked dense and under the tables, in one run, and whether the difference is within what is allowed.

mod items;

use super::{Job, asking, hashed};
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use items::Items;
use serde_json::{Map, Value, json};
use skip_client::protocol::{EvaluateOptions, Selector};
use skip_client::{Error, ErrorKind};
use skip_engine::ask::ask;
use skip_engine::evaluate::Item;
use skip_engine::evaluate::results::{Arm, ArmScores, FORMAT, Identity, Results};
use skip_engine::evaluate::statistics::{ItemScore, Verdict, gate};
use skip_engine::handle::{Request, TableSet};
use skip_tables::Phase;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What came out.
pub struct Found {
    /// Scores, and the comparisons with dense.
    pub results: Results,
    /// The worst of the arms'; None where nothing was compared.
    pub verdict: Option<Verdict>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// What is to be asked.
pub struct Work {
    options: EvaluateOptions,
    context: usize,
    model: Arc<Model>,
    /// Tables to score other than those in force.
    tables: Option<TableSet>,
}

impl Work {
    /// Checks the options against what is loaded.
    ///
    /// # Errors
    /// An option is wrong, the daemon is not ready, or the context is too long.
    pub fn of(daemon: &Daemon, options: &Map<String, Value>) -> Result<Self, Error> {
        Self::with(daemon, EvaluateOptions::from_map(options)?)
    }

    /// The same with options that were read.
    ///
    /// # Errors
    /// Likewise.
    pub fn with(daemon: &Daemon, options: EvaluateOptions) -> Result<Self, Error> {
        let model = daemon.ready_model()?;
        let longest = model.engine.longest_request() as usize;
        let context = options.max_context.unwrap_or(longest);
        if context > longest {
            return Err(Error::invalid("max_context", format!("{context}: the daemon's context is {longest} tokens")));
        }
        Ok(Self { options, context, model, tables: None })
    }

    /// Scores these tables, whatever is in force.
    pub fn under(self, tables: TableSet) -> Self {
        Self { tables: Some(tables), ..self }
    }

    /// Asks every item, dense and under every arm's tables.
    pub fn run(self, daemon: &Daemon, job: &Job) -> Result<Value, Error> {
        let began = Instant::now();
        let Found { results, verdict, notes } = self.results(daemon, job, true)?;
        let seconds = began.elapsed().as_secs_f64();
        Ok(json!({"verdict": verdict.map(verdict_name), "results": results, "notes": notes, "seconds": seconds}))
    }

    /// The same as it is; `tells` the job how far it is.
    ///
    /// # Errors
    /// A file is wrong, a request failed, or it was cancelled.
    pub fn results(&self, daemon: &Daemon, job: &Job, tells: bool) -> Result<Found, Error> {
        let cancelled = || job.is_cancelled() || daemon.life.stage() == Stage::Draining;
        if tells {
            job.advance("reading texts and questions".into(), 0.0);
        }
        let checkpoint = hashed(&self.model, &cancelled)?;
        let under_tables = arms(&self.options, &self.model, self.tables.as_ref())?;
        let items =
            Items::open(&daemon.config.model, self.model.engine.model().vocabulary as usize, self.context, &self.options, &cancelled)?;
        let identity = Identity {
            checkpoint,
            seed: self.options.seed,
            max_context: self.context,
            items: items.digest(),
            corpus: items.corpus.clone(),
        };
        let known = match &self.options.baseline {
            None => None,
            Some(path) => {
                let wrong = |error: &dyn std::fmt::Display| asking::unless(cancelled(), Error::invalid("baseline", error.to_string()));
                let before = Results::open(Path::new(path), &cancelled).map_err(|error| wrong(&error))?;
                Some(before.baseline(&identity).map_err(|error| wrong(&error))?.to_vec())
            }
        };
        let arms: Vec<(Arm, TableSet)> = match known {
            Some(_) => under_tables,
            None => [(Arm::Dense, TableSet::default())].into_iter().chain(under_tables).collect(),
        };
        let all = (arms.len() * items.items.len()).max(1);
        let mut scored: Vec<ArmScores> = known
            .map(|scores| ArmScores { arm: Arm::Dense, tables: [None, None], scores, gate: None })
            .into_iter()
            .chain(arms.iter().map(|(arm, tables)| ArmScores {
                arm: *arm,
                tables: Phase::ALL.map(|phase| tables.phase(phase).map(|t| t.hash.clone())),
                scores: Vec::new(),
                gate: None,
            }))
            .collect();
        let first = scored.len() - arms.len();
        // Item by item, so that what is learnt before a cancellation is of all arms, and so that they meet the same machine.
        for (i, item) in items.items.iter().enumerate() {
            for (place, (arm, tables)) in arms.iter().enumerate() {
                if tells {
                    job.advance(format!("{}, {}", item.id, arm.name()), (i * arms.len() + place) as f64 / all as f64);
                }
                let score = self.ask(item, tables, &items, &cancelled)?;
                scored[first + place].scores.push(score);
            }
        }
        let dense = scored[0].scores.clone();
        let mut worst = None;
        for arm in &mut scored[1..] {
            let found =
                gate(&dense, &arm.scores, self.options.max_drop).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            worst = worst.max(Some(found.verdict));
            arm.gate = Some(found);
        }
        let results = Results { format: FORMAT, label: self.options.label.clone().unwrap_or_default(), identity, arms: scored };
        Ok(Found { results, verdict: worst, notes: items.notes })
    }

    fn ask(&self, item: &Item, tables: &TableSet, items: &Items, cancelled: &dyn Fn() -> bool) -> Result<ItemScore, Error> {
        let request = Request { ignore_eos: false, ..asking::request(item.tokens.clone(), item.max_tokens as u32, tables.clone()) };
        let answer = ask(&self.model.engine, request, cancelled).map_err(|error| {
            let error = asking::failed(error);
            Error { message: format!("{}: {}", item.id, error.message), ..error }
        })?;
        let text = items.text(&answer.tokens);
        let end = item.stop.iter().filter_map(|stop| text.find(stop.as_str())).min().unwrap_or(text.len());
        let score = item.reference.score(text.get(..end).unwrap_or_default());
        Ok(ItemScore { id: item.id.clone(), task: item.task.clone(), score })
    }
}

/// The word for a verdict.
fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Inconclusive => "inconclusive",
        Verdict::Fail => "fail",
    }
}

/// The arms to set beside dense, with their tables.
fn arms(options: &EvaluateOptions, model: &Model, given: Option<&TableSet>) -> Result<Vec<(Arm, TableSet)>, Error> {
    let table = |phase: Phase| match (given, &options.tier) {
        (Some(tables), _) => Ok(tables.phase(phase).cloned()),
        (None, None) => Ok(model.tables.in_force().phase(phase).cloned()),
        (None, Some(tier)) => model.tables.resolve(phase, &Selector::Tier(tier.clone())),
    };
    let wanted: Vec<&str> = options.arm.iter().map(String::as_str).collect();
    if wanted == ["dense"] {
        return Ok(Vec::new());
    }
    let found = Phase::ALL.map(table);
    let [prefill, decode] = found;
    // A tier that only one phase's ladder has is that phase's; one that none has is refused by name.
    let (prefill, decode) = match (prefill, decode) {
        (Err(error), Err(_)) => return Err(error),
        (prefill, decode) => (prefill.unwrap_or_default(), decode.unwrap_or_default()),
    };
    let of = |arm: Arm| {
        let set =
            TableSet { prefill: prefill.clone().filter(|_| arm != Arm::Decode), decode: decode.clone().filter(|_| arm != Arm::Prefill) };
        (arm, set)
    };
    let has = |arm: Arm| match arm {
        Arm::Dense => true,
        Arm::Prefill => prefill.is_some(),
        Arm::Decode => decode.is_some(),
        Arm::Both => prefill.is_some() && decode.is_some(),
    };
    let arms: Vec<Arm> = match wanted.as_slice() {
        [] if has(Arm::Both) => vec![Arm::Both],
        [] => [Arm::Prefill, Arm::Decode].into_iter().filter(|&arm| has(arm)).collect(),
        wanted => [Arm::Prefill, Arm::Decode, Arm::Both].into_iter().filter(|arm| wanted.contains(&arm.name())).collect(),
    };
    if let Some(arm) = arms.iter().find(|&&arm| !has(arm)) {
        return Err(Error::invalid("arm", format!("{}: there is no such table in force; calibrate, set one, or name a tier", arm.name())));
    }
    if arms.is_empty() {
        return Err(Error::invalid(
            "arm",
            "both phases are dense: calibrate, set a table, or name a tier; `dense` scores without comparing",
        ));
    }
    Ok(arms.into_iter().map(of).collect())
}

//! `calibrate`: measures the loaded checkpoint with the engine that serves it, writes its tables, and puts them in force. Requests come first: the
//! job's own are the background's.

mod kept;
pub mod layers;
mod report;
mod texts;
mod write;

pub use texts::Texts;
pub use write::{today, write_key};

use super::{Job, asking};
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use kept::Kept;
use serde_json::{Map, Value};
use skip_client::protocol::{CalibrateOptions, CalibratePhase};
use skip_client::{Error, ErrorKind};
use skip_engine::calibrate::bins::{Bin, bins};
use skip_engine::calibrate::check::{CheckRecord, check};
use skip_engine::calibrate::ladder::Origin;
use skip_engine::calibrate::outcome::{PhaseOutcome, outcome};
use skip_engine::calibrate::record::{BinRecord, Plan};
use skip_engine::calibrate::run::{At, CalibrateError, Host, Prompt, Settings, run};
use skip_engine::handle::{NamedTable, TableSet};
use skip_engine::regular::Cancelled;
use skip_tables::{Digest, Geometry, Phase, Tier};
use std::sync::Arc;
use std::time::Instant;

/// What is to be measured.
pub struct Work {
    options: CalibrateOptions,
    settings: Settings,
    model: Arc<Model>,
    runtime: tokio::runtime::Handle,
}

impl Work {
    /// Checks the options against what is loaded.
    ///
    /// # Errors
    /// An option is wrong, the daemon is not ready, nothing in the checkpoint can skip, or a prompt would be longer than a request may be.
    pub fn of(daemon: &Daemon, options: &Map<String, Value>) -> Result<Self, Error> {
        let options = CalibrateOptions::from_map(options)?;
        let model = daemon.ready_model()?;
        if model.voting_layers == 0 {
            return Err(refusal(CalibrateError::NoVotes));
        }
        let phases = match options.phase {
            CalibratePhase::Prefill => vec![Phase::Prefill],
            CalibratePhase::Decode => vec![Phase::Decode],
            CalibratePhase::Both => Phase::ALL.to_vec(),
        };
        let mut settings = Settings {
            bins: Vec::new(),
            tiers: tiers(&options.target_sparsity)?,
            decode_tokens: options.decode_tokens,
            client: asking::client(),
            phases,
        };
        let (longest, drawn) = (model.engine.longest_request() as usize, settings.drawn() as usize);
        let max = options.max_seqlen.unwrap_or(longest.saturating_sub(drawn));
        settings.fits(max, longest).map_err(|error| Error::invalid("max_seqlen", error.to_string()))?;
        settings.bins = bins(options.bin_min, options.bin_step, max).map_err(|error| Error::invalid(error.option(), error.to_string()))?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::new(ErrorKind::Internal, "no runtime"))?;
        Ok(Self { options, settings, model, runtime })
    }

    /// Measures, writes, loads, and checks where that is asked for.
    pub fn run(self, daemon: &Daemon, job: &Job) -> Result<Value, Error> {
        let began = Instant::now();
        let cancelled = || job.is_cancelled() || daemon.life.stage() == Stage::Draining;
        job.advance("hashing the weights".into(), 0.0);
        let checkpoint = super::hashed(&self.model, &cancelled)?
            .parse()
            .map_err(|_| Error::new(ErrorKind::Internal, "the digest of the weights is none"))?;
        job.advance("reading texts".into(), 0.0);
        let texts = Texts::open(&daemon.config.model, self.model.engine.model().vocabulary as usize, &self.options, &cancelled)?;
        let folder = self.options.cache_dir.as_ref().map_or_else(|| daemon.config.state_dir.join("calibrate"), Into::into);
        let family = self.family();
        let kept = Kept::open(&folder, &self.key(&checkpoint, texts.digest(), family)).map_err(|error| cannot_keep(&folder, &error))?;
        // The check runs each bin's texts once more.
        let checks = self.options.check > 0;
        let part = if checks { 0.6 } else { 1.0 };
        let (layers, samples) = (self.model.layers as usize, self.options.samples);
        let plan = |bin| Plan { bin, phases: &self.settings.phases, tiers: &self.settings.tiers, samples, layers };
        let mut host = JobHost { texts: &texts, kept: &kept, plan: &plan, notes: Vec::new(), job, cancelled: &cancelled, part };
        let records = run(&self.model.engine, &self.settings, &mut host).map_err(refusal)?;
        let notes = host.notes;

        job.advance("writing the tables".into(), part);
        let tier = Tier::from_share(self.options.wanted()).map_err(|error| Error::invalid("deploy", error.to_string()))?;
        let origin = |phase| Origin {
            geometry: Geometry::portable(phase),
            kernel_family: family.into(),
            checkpoint,
            corpus: texts.digest(),
            date: write::today(),
        };
        let made = |&phase: &Phase| Ok((phase, outcome(phase, &records, tier, self.options.mass_ratio, origin(phase)).map_err(internal)?));
        let outcomes = self.settings.phases.iter().map(made).collect::<Result<Vec<_>, Error>>()?;
        let written = write::write(&self.model.tables.paths(), &outcomes)?;
        self.runtime.block_on(self.model.tables.reload())?;

        let mut checked = Vec::new();
        if checks {
            for (i, bin) in self.settings.bins.iter().enumerate() {
                let done = part + (1.0 - part) * i as f64 / self.settings.bins.len() as f64;
                job.advance(format!("checking {} tokens on other texts", bin.first), done);
                checked.extend(self.check(*bin, &texts, &outcomes, &cancelled)?);
            }
        }
        kept.prune();
        report::report((&records, notes), &outcomes, &checked, &written, began.elapsed())
    }

    /// Whose votes were measured. On a device it is the portable kernels that measure, whatever serves.
    fn family(&self) -> &'static str {
        match self.model.engine.status().backend {
            Some(backend) if backend.name == "cuda" => "portable",
            _ => "cpu",
        }
    }

    /// What a kept bin depends on, and what its place is named by.
    fn key(&self, checkpoint: &Digest, corpus: Digest, family: &str) -> String {
        let o = &self.options;
        let tiers: Vec<String> = self.settings.tiers.iter().map(ToString::to_string).collect();
        format!("2 {checkpoint} {corpus} {family} {:?} {tiers:?} {} {} {}", self.settings.phases, o.samples, o.decode_tokens, o.seed)
    }

    /// Runs other texts of a bin under the tables just made.
    fn check(
        &self,
        bin: Bin,
        texts: &Texts,
        outcomes: &[(Phase, PhaseOutcome)],
        cancelled: Cancelled<'_>,
    ) -> Result<Vec<CheckRecord>, Error> {
        let table = |phase: Phase| {
            let (_, of) = outcomes.iter().find(|(other, _)| *other == phase)?;
            let table = of.tables.deployed.table()?.clone();
            let (tier, hash) = (of.tables.target.map(|tier| tier.to_string()), table.digest().to_string());
            Some(Arc::new(NamedTable { table, tier, origin: "calibrate".into(), hash }))
        };
        let tables = TableSet { prefill: table(Phase::Prefill), decode: table(Phase::Decode) };
        let prompts = texts.other_prompts(bin, self.options.check, cancelled).map_err(refusal)?;
        let drawn = if tables.decode.is_some() { self.settings.drawn() } else { 1 };
        check(&self.model.engine, (bin, &prompts), &tables, (self.settings.client, drawn), cancelled).map_err(refusal)
    }
}

fn tiers(shares: &[f64]) -> Result<Vec<Tier>, Error> {
    let mut tiers = Vec::new();
    for &share in shares {
        let tier = Tier::from_share(share).map_err(|error| Error::invalid("target_sparsity", error.to_string()))?;
        if !tiers.contains(&tier) {
            tiers.push(tier);
        }
    }
    tiers.sort();
    Ok(tiers)
}

fn cannot_keep(folder: &std::path::Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("{}: {error}: what is measured cannot be kept", folder.display()))
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

/// Also of the prompts of other jobs.
pub fn refusal(error: CalibrateError) -> Error {
    let kind = match &error {
        CalibrateError::Cancelled => return asking::cancelled(),
        CalibrateError::Asked(error) => return asking::failed(error.clone()),
        CalibrateError::NoVotes => ErrorKind::Unsupported,
        CalibrateError::TooLong { .. } | CalibrateError::Prompts(_) => ErrorKind::InvalidRequest,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string())
}

/// What a run asks for.
struct JobHost<'a> {
    texts: &'a Texts,
    kept: &'a Kept,
    plan: &'a dyn Fn(Bin) -> Plan<'a>,
    /// Bins that were kept and were of no use.
    notes: Vec<String>,
    job: &'a Job,
    cancelled: Cancelled<'a>,
    /// Of the job's progress, what measuring is.
    part: f64,
}

impl Host for JobHost<'_> {
    fn prompts(&mut self, bin: Bin) -> Result<Vec<Prompt>, CalibrateError> {
        self.texts.prompts(bin, self.cancelled)
    }

    fn kept(&mut self, bin: Bin) -> Option<BinRecord> {
        self.kept.read(&(self.plan)(bin)).unwrap_or_else(|note| {
            tracing::warn!(%note, "a bin that was kept is of no use");
            self.notes.push(note);
            None
        })
    }

    fn keep(&mut self, record: &BinRecord) -> Result<(), String> {
        self.kept.write(record).map_err(|error| cannot_keep(self.kept.folder(), &error).message)
    }

    fn at(&mut self, At { bin, prompt: (prompt, prompts), done }: At) {
        let stage = format!("measuring {} to {} tokens, prompt {} of {prompts}", bin.first, bin.end - 1, prompt + 1);
        self.job.advance(stage, done * self.part);
    }

    fn is_cancelled(&self) -> bool {
        (self.cancelled)()
    }
}

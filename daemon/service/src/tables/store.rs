//! The tables' state without a task around it: files, set-table's state machine, and what they decide.

use super::files::{self, Paths, ReadError, Update};
use skip_client::protocol::{Selector, SetTableOptions};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::{NamedTable, TableSet};
use skip_tables::{
    Decision, Digest, Document, NothingPending, Notice, PerPhase, Phase, Refusal, Retarget, Selection, Setting, Source, Sources, Target,
    Tier, ToPersist, Unread, Weights, check, resolve,
};
use skip_updates::SlotName;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files and settings, and the checks they are put to. Cheap enough to clone: a transition is tried on a copy, so that a failure leaves the old state.
#[derive(Clone, Debug)]
pub struct Store {
    paths: Paths,
    persisted: Option<Source>,
    admin: Option<Source>,
    /// What came over the air.
    update: Option<Update>,
    /// What was wrong with it.
    update_problems: Vec<Notice>,
    /// The update on trial that is used.
    begun: Option<SlotName>,
    checkpoint: Source,
    retarget: Retarget,
    target: Target,
    /// Files that could not be read at the start.
    problems: Vec<Notice>,
    /// Phases made dense because they skipped far more than their tier stands for.
    pub suspended: PerPhase<bool>,
}

/// A wanted setting; None lets the files decide again.
pub type Wanted = Option<Setting>;

impl Store {
    /// Reads the files. One that cannot be used is passed over with a notice, so that a bad table does not keep the daemon from starting.
    pub fn open(paths: Paths) -> Self {
        let mut problems = Vec::new();
        let mut read = |path: &std::path::Path| {
            files::read(path).unwrap_or_else(|error| {
                tracing::warn!(%error, "a table file is passed over");
                problems.push(Notice::PassedOver { place: path.display().to_string(), reason: error.to_string() });
                None
            })
        };
        let persisted = read(&paths.persisted());
        let admin = read(&paths.admin);
        let checkpoint = read(&paths.calibrated()).or_else(|| read(&paths.config())).unwrap_or_default();
        let target = Target::portable(Weights::Pending);
        let (update, update_problems) = paths.update(None);
        Self {
            paths,
            persisted,
            admin,
            update,
            update_problems,
            begun: None,
            checkpoint,
            retarget: Retarget::default(),
            target,
            problems,
            suspended: PerPhase::default(),
        }
    }

    /// A store without files, for weights that nobody hashes.
    pub fn empty() -> Self {
        Self {
            paths: Paths::default(),
            persisted: None,
            admin: None,
            update: None,
            update_problems: Vec::new(),
            begun: None,
            checkpoint: Source::default(),
            retarget: Retarget::default(),
            target: Target::portable(Weights::Unchecked),
            problems: Vec::new(),
            suspended: PerPhase::default(),
        }
    }

    /// Reads all files again.
    ///
    /// # Errors
    /// The first file that is wrong; then nothing changes.
    pub fn reload(&mut self) -> Result<(), ReadError> {
        let persisted = files::read(&self.paths.persisted())?;
        let admin = files::read(&self.paths.admin)?;
        let checkpoint = match files::read(&self.paths.calibrated())? {
            Some(own) => own,
            None => files::read(&self.paths.config())?.unwrap_or_default(),
        };
        (self.persisted, self.admin, self.checkpoint) = (persisted, admin, checkpoint);
        (self.update, self.update_problems) = self.paths.update(self.begun.as_ref());
        self.problems.clear();
        self.suspended = PerPhase::default();
        Ok(())
    }

    /// Uses the update on trial of this name, or else the committed one, as they lie there now.
    pub fn follow_update(&mut self, begun: Option<SlotName>) {
        self.begun = begun;
        (self.update, self.update_problems) = self.paths.update(self.begun.as_ref());
    }

    /// What the update alone would decide.
    pub fn update_alone(&self) -> PerPhase<Decision> {
        let sources = Sources { update: self.update_source(), ..Sources::default() };
        PerPhase::from_fn(|phase| resolve(phase, &sources, &self.target))
    }

    /// The update's tables, if they are for the loaded weights.
    fn update_source(&self) -> Option<Source> {
        let update = self.update.as_ref()?;
        (self.digest() == Some(update.checkpoint)).then(|| update.source.clone())
    }

    /// What is to be told of the update.
    fn update_notices(&self) -> impl Iterator<Item = Notice> {
        let other = self.update.as_ref().zip(self.digest()).filter(|(update, loaded)| update.checkpoint != *loaded);
        let other = other.map(|(update, loaded)| Notice::PassedOver {
            place: update.source.place.clone(),
            reason: format!("it is for weights {}, and {loaded} are loaded", update.checkpoint),
        });
        self.update_problems.iter().cloned().chain(other)
    }

    /// Where the files lie.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The weights are hashed.
    pub fn set_digest(&mut self, digest: Digest) {
        self.target.weights = Weights::Known(digest);
    }

    /// The weights' digest, once known.
    pub fn digest(&self) -> Option<Digest> {
        match self.target.weights {
            Weights::Known(digest) => Some(digest),
            Weights::Pending | Weights::Unchecked => None,
        }
    }

    /// set-table's state.
    pub fn retarget(&self) -> &Retarget {
        &self.retarget
    }

    /// The checkpoint's own tables.
    pub fn checkpoint(&self) -> &Source {
        &self.checkpoint
    }

    /// What is in force in each phase, and why.
    pub fn decide(&self) -> PerPhase<Decision> {
        self.decide_with(self.retarget.in_force())
    }

    /// What comes back in a phase on trial.
    pub fn before_trial(&self, phase: Phase) -> Option<Decision> {
        let trial = self.retarget.trial().filter(|t| t.covers(phase))?;
        let mut set = self.retarget.in_force().clone();
        set[phase] = trial.before(phase).cloned();
        Some(self.decide_with(&set)[phase].clone())
    }

    fn decide_with(&self, set: &PerPhase<Wanted>) -> PerPhase<Decision> {
        let sources = Sources {
            set: set.clone(),
            persisted: self.persisted.clone(),
            admin: self.admin.clone(),
            update: self.update_source(),
            checkpoint: self.checkpoint.clone(),
        };
        PerPhase::from_fn(|phase| {
            let mut decision = resolve(phase, &sources, &self.target);
            decision.notices.extend(self.problems.iter().cloned().chain(self.update_notices()));
            decision.notices.extend(
                self.unread()
                    .filter(|(_, unread)| unread.concerns(phase))
                    .map(|(place, unread)| Notice::Unread { place: place.to_owned(), unread: unread.clone() }),
            );
            if self.suspended[phase] {
                decision.table = None;
            }
            decision
        })
    }

    /// Keys of the files that look like tables' and are not read, with the file.
    fn unread(&self) -> impl Iterator<Item = (&str, &Unread)> {
        let sources = [self.persisted.as_ref(), self.admin.as_ref(), Some(&self.checkpoint)];
        sources.into_iter().flatten().flat_map(|source| source.file.unread.iter().map(|unread| (source.place.as_str(), unread)))
    }

    /// What is wrong with the files, whatever phase it concerns: those passed over at the start, and keys that are not read.
    pub fn warnings(&self) -> Vec<String> {
        let problems = self.problems.iter().cloned().chain(self.update_notices()).map(|notice| notice.to_string());
        problems.chain(self.unread().map(|(place, unread)| format!("{place}: {unread}"))).collect()
    }

    /// What a caller asks for, understood and checked; `auto` lets the files decide again.
    pub fn understand(&self, phase: Phase, selector: &Selector, force: bool) -> Result<(Wanted, Option<Decision>), Error> {
        let selection = match selector {
            Selector::None => Selection::Dense,
            Selector::Tier(name) if name == "auto" => return Ok((None, None)),
            Selector::Tier(name) => {
                Selection::Tier(name.parse().map_err(|e: skip_tables::TierError| refused(format!("{e}, `none`, `auto` or a table")))?)
            }
            Selector::Table(value) => {
                let document = Document::parse(value.to_string().as_bytes()).map_err(|e| refused(e.to_string()))?;
                Selection::of_document(document, phase)
            }
        };
        let setting = Setting { selection, force };
        let decision = check(phase, &setting, &self.checkpoint, &self.target).map_err(refusal)?;
        Ok((Some(setting), Some(decision)))
    }

    /// Puts a setting in force, on disk too where it persists.
    pub fn set(&mut self, phase: Phase, wanted: Wanted, options: SetTableOptions, now: Instant) -> Result<(), Error> {
        let within: Option<Duration> = options.confirm_within()?;
        let writes = self.retarget.set(phase, wanted, options.persist, within, now);
        self.suspended[phase] = false;
        self.write(&writes)
    }

    /// Keeps what is on trial.
    pub fn confirm(&mut self, now: Instant) -> Result<(), Error> {
        let writes = self.retarget.confirm(now).map_err(nothing_pending)?;
        self.write(&writes)
    }

    /// Takes back what is on trial.
    pub fn revert(&mut self) -> Result<(), Error> {
        self.retarget.revert().map_err(nothing_pending)
    }

    /// Reverts a trial that was not confirmed in time; whether one was.
    pub fn tick(&mut self, now: Instant) -> bool {
        self.retarget.tick(now)
    }

    fn write(&mut self, changes: &ToPersist) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let before = self.persisted.as_ref().map(|s| &s.file);
        let path = self.paths.persisted();
        let file = self.paths.persist(before, changes).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("{} cannot be written: {error}; the table before stays", path.display()))
        })?;
        self.persisted = Some(Source { place: path.display().to_string(), file });
        Ok(())
    }
}

/// The tables of decisions, as the engine takes them. `origin` replaces the source's name (a request's own tables).
pub fn named(decision: &Decision, origin: Option<&str>) -> Option<Arc<NamedTable>> {
    let table = decision.table.clone()?;
    let hash = table.digest().to_string();
    let origin = origin.unwrap_or(decision.decided_by.name()).to_owned();
    Some(Arc::new(NamedTable { table, tier: decision.tier.as_ref().map(Tier::to_string), origin, hash }))
}

/// Both phases for the engine; a table that did not change stays the same object.
pub fn table_set(decisions: &PerPhase<Decision>, before: &TableSet) -> TableSet {
    let keep = |phase: Phase| {
        let new = named(&decisions[phase], None)?;
        Some(before.phase(phase).filter(|old| ***old == *new).cloned().unwrap_or(new))
    };
    TableSet { prefill: keep(Phase::Prefill), decode: keep(Phase::Decode) }
}

/// A refusal as it crosses an interface, with the tiers that can be had for programs.
pub fn refusal(refusal: Refusal) -> Error {
    let available = match &refusal {
        Refusal::NoSuchTier { available, .. } | Refusal::Unreached { available, .. } => Some(available.clone()),
        _ => None,
    };
    let forcible = refusal.can_be_forced();
    let error = refused(if forcible { format!("{refusal} (force uses it all the same)") } else { refusal.to_string() });
    match available {
        Some(tiers) => error.with("available", tiers.iter().map(Tier::to_string).collect::<Vec<_>>()),
        None => error,
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::TableRefused, message).at("selector")
}

fn nothing_pending(error: NothingPending) -> Error {
    Error::new(ErrorKind::NothingPending, error.to_string())
}

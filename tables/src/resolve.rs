//! Which table is in force in a phase, and which source decided: first match wins, each phase on its own.

use crate::admit::{Notice, Refusal, Target, admit};
use crate::file::Keys;
use crate::{Calibration, Deployed, Document, Modelopt, ModeloptError, PerPhase, Phase, PhaseTables, ScaleTable, TableFile, Tier};
use std::fmt;

/// What a caller of set-table asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// A tier of the checkpoint's ladder.
    Tier(Tier),
    /// Dense.
    Dense,
    /// Bare rows: the caller's own word.
    Rows(ScaleTable),
    /// What a table file says of the phase.
    Tables(Box<PhaseTables>),
}

impl Selection {
    /// What a table file, given to set-table, asks for in a phase.
    pub fn of_document(document: Document, phase: Phase) -> Self {
        match document {
            Document::Rows(table) => Self::Rows(table),
            Document::Tables(file) => Self::Tables(Box::new(file.phase(phase).clone())),
        }
    }
}

/// A set-table: what, and whether over the checks' refusals.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// What to put in force.
    pub selection: Selection,
    /// Overrule the checks of checkpoint, geometry, record and reach.
    pub force: bool,
}

impl Setting {
    /// The setting as an override file states it: a tier by its name, so that a new calibration's rows are followed; bare rows vouched for.
    pub fn to_tables(&self) -> PhaseTables {
        let said = PhaseTables { force: self.force, ..PhaseTables::default() };
        match &self.selection {
            Selection::Tier(tier) => PhaseTables { target: Some(*tier), ..said },
            Selection::Dense => PhaseTables { deployed: Deployed::Dense, ..said },
            Selection::Rows(table) => PhaseTables { deployed: Deployed::Table(table.clone()), force: true, ..said },
            Selection::Tables(tables) => PhaseTables { force: self.force || tables.force, ..(**tables).clone() },
        }
    }
}

/// A file's tables and where it lies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// For people: the file's path.
    pub place: String,
    /// What it says.
    pub file: TableFile,
}

/// Everything that may decide, highest precedence first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sources {
    /// set-table in force.
    pub set: PerPhase<Option<Setting>>,
    /// The persisted set-table.
    pub persisted: Option<Source>,
    /// The administrator's file.
    pub admin: Option<Source>,
    /// The committed update slot.
    pub update: Option<Source>,
    /// The checkpoint's config.json.
    pub checkpoint: Source,
}

/// Which source decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// set-table, until the process ends.
    SetTable,
    /// A persisted set-table.
    Persisted,
    /// The administrator's file.
    Admin,
    /// A committed update.
    Update,
    /// The checkpoint's config.json.
    Checkpoint,
    /// None of them: dense.
    Default,
}

impl Origin {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::SetTable => "set-table",
            Self::Persisted => "persisted",
            Self::Admin => "admin",
            Self::Update => "update",
            Self::Checkpoint => "checkpoint",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a phase does from now on, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The phase.
    pub phase: Phase,
    /// Its table; None: dense.
    pub table: Option<ScaleTable>,
    /// Who decided.
    pub decided_by: Origin,
    /// File and key the table lies in; empty where there is none.
    pub location: String,
    /// The tier, where the table is one of a ladder.
    pub tier: Option<Tier>,
    /// What a person should know.
    pub notices: Vec<Notice>,
}

impl Decision {
    fn dense(phase: Phase, decided_by: Origin, location: String) -> Self {
        Self { phase, table: None, decided_by, location, tier: None, notices: Vec::new() }
    }

    /// Says what the table itself implies.
    fn describe(mut self, record: Option<&Calibration>) -> Self {
        let Some(table) = &self.table else { return self };
        if table.first_skippable_length().is_none() {
            self.notices.push(Notice::NeverSkips);
            return self;
        }
        let dense: Vec<u32> = table.rows().iter().filter(|r| r.s == 0.0).map(|r| r.first_length).collect();
        if record.is_some() && !dense.is_empty() {
            self.notices.push(Notice::DenseBins { first_lengths: dense });
        }
        if let Some(max) = table.max_len() {
            self.notices.push(Notice::DenseBeyond(max));
        }
        self
    }
}

/// Decides one phase. A source that says nothing of the phase, or whose table is refused, is passed over (the latter with a notice).
pub fn resolve(phase: Phase, sources: &Sources, target: &Target) -> Decision {
    let ladder = &sources.checkpoint;
    let mut passed_over = Vec::new();
    let mut take = |result: Result<Decision, Refusal>, place: &str| match result {
        Ok(decision) => Some(decision),
        Err(refusal) => {
            passed_over.push(Notice::PassedOver { place: place.into(), reason: refusal.to_string() });
            None
        }
    };
    let set = sources.set[phase].as_ref().and_then(|setting| take(check(phase, setting, ladder, target), "set-table"));
    let decided = set.or_else(|| {
        let files = [
            (Origin::Persisted, sources.persisted.as_ref()),
            (Origin::Admin, sources.admin.as_ref()),
            (Origin::Update, sources.update.as_ref()),
            (Origin::Checkpoint, Some(ladder)),
        ];
        files.into_iter().find_map(|(origin, source)| {
            let source = source?;
            let said = source.file.phase(phase);
            if origin == Origin::Checkpoint && *said == PhaseTables::default() {
                let found = source.file.modelopt[phase].as_ref()?;
                let place = at(&source.place, crate::modelopt::KEY);
                return take(converted(phase, place.clone(), found, target), &place);
            }
            if !speaks(origin, said) {
                return None;
            }
            take(choose(phase, origin, &source.place, said, ladder, target, said.force && origin != Origin::Checkpoint), &source.place)
        })
    });
    let mut decision = decided.unwrap_or_else(|| Decision::dense(phase, Origin::Default, String::new()));
    decision.notices.extend(passed_over);
    decision
}

/// Decides what one set-table would put in force, before it does.
///
/// # Errors
/// [`Refusal`], which names what could be had instead.
pub fn check(phase: Phase, setting: &Setting, checkpoint: &Source, target: &Target) -> Result<Decision, Refusal> {
    let origin = Origin::SetTable;
    match &setting.selection {
        Selection::Dense => Ok(Decision::dense(phase, origin, String::new())),
        Selection::Tier(tier) => tier_of(phase, origin, *tier, &checkpoint.place, checkpoint.file.phase(phase), target, setting.force),
        Selection::Rows(table) => {
            let decision = Decision {
                table: Some(table.clone()),
                notices: vec![Notice::CallersWord],
                ..Decision::dense(phase, origin, String::new())
            };
            Ok(decision.describe(None))
        }
        Selection::Tables(tables) if tables.is_silent() => Err(Refusal::Silent { phase }),
        Selection::Tables(tables) => choose(phase, origin, "", tables, checkpoint, target, setting.force),
    }
}

/// Whether a source says anything of the phase. In a checkpoint a null table is no statement, but a removed one is, if calibration recorded it.
fn speaks(origin: Origin, said: &PhaseTables) -> bool {
    match origin {
        Origin::Checkpoint => said.target.is_some() || said.deployed.table().is_some() || edited(said),
        _ => !said.is_silent(),
    }
}

/// The deployed table, or its absence, is not what calibration wrote.
fn edited(said: &PhaseTables) -> bool {
    said.record.as_ref().is_some_and(|r| r.table_sha256 != said.deployed.table().map(ScaleTable::digest))
}

/// A file's word on a phase: a deployed table edited by hand, else the target tier, else the deployed table.
fn choose(
    phase: Phase,
    origin: Origin,
    place: &str,
    said: &PhaseTables,
    checkpoint: &Source,
    target: &Target,
    force: bool,
) -> Result<Decision, Refusal> {
    let edited = edited(said);
    let mut notices = Vec::new();
    if let (false, Some(tier)) = (edited, said.target) {
        // An override file that brings no ladder means the checkpoint's.
        let (place, holder) = if said.ladder.is_empty() && origin != Origin::Checkpoint {
            (checkpoint.place.as_str(), checkpoint.file.phase(phase))
        } else {
            (place, said)
        };
        match tier_of(phase, origin, tier, place, holder, target, force) {
            Ok(decision) => return Ok(decision),
            Err(refusal) if said.deployed.table().is_some() => notices.push(Notice::TargetPassedOver(refusal)),
            Err(refusal) => return Err(refusal),
        }
    }
    let location = at(place, &Keys::of(phase).table);
    let Some(table) = said.deployed.table() else {
        let mut decision = Decision::dense(phase, origin, location);
        if edited {
            decision.notices.push(Notice::RemovedByHand);
        }
        return Ok(decision);
    };
    notices.extend(admit(phase, said.record.as_ref(), target, force)?);
    if edited {
        notices.push(Notice::EditedByHand);
    }
    let tier = said.ladder.iter().find(|(_, rung)| rung.rows() == table.rows()).map(|(tier, _)| *tier);
    let decision = Decision { phase, table: Some(table.clone()), decided_by: origin, location, tier, notices };
    Ok(decision.describe(said.record.as_ref()))
}

/// ModelOpt's word on a phase, which has no record but known votes.
fn converted(phase: Phase, location: String, found: &Result<Modelopt, ModeloptError>, target: &Target) -> Result<Decision, Refusal> {
    let found = found.as_ref().map_err(|error| Refusal::Modelopt(error.clone()))?;
    let (recorded, used) = (Modelopt::geometry(phase), target.geometry[phase]);
    if phase == Phase::Decode && recorded != used {
        return Err(Refusal::OtherGeometry { phase, recorded, used });
    }
    let mut notices = vec![Notice::Converted { s: found.s(), target: found.target, left_out: found.left_out.clone() }];
    if recorded != used {
        notices.push(Notice::OtherGeometry { recorded, used });
    }
    let decision = Decision { phase, table: Some(found.table.clone()), decided_by: Origin::Checkpoint, location, tier: None, notices };
    Ok(decision.describe(None))
}

/// A tier of the ladder that `holder` has.
fn tier_of(
    phase: Phase,
    origin: Origin,
    tier: Tier,
    place: &str,
    holder: &PhaseTables,
    target: &Target,
    force: bool,
) -> Result<Decision, Refusal> {
    if holder.ladder.is_empty() {
        return Err(Refusal::NoLadder { phase, tier });
    }
    let available = || holder.ladder.keys().copied().filter(|&t| is_reached(holder, t)).collect();
    let Some(table) = holder.ladder.get(&tier) else {
        return Err(Refusal::NoSuchTier { phase, tier, available: available() });
    };
    let mut notices = Vec::new();
    if !is_reached(holder, tier) {
        let share = holder.record.as_ref().and_then(|r| r.best_share(tier));
        let refusal = Refusal::Unreached { phase, tier, share, available: available() };
        if !force {
            return Err(refusal);
        }
        notices.push(Notice::Forced(refusal));
    }
    notices.extend(admit(phase, holder.record.as_ref(), target, force)?);
    let location = at(place, &format!("{}[\"{tier}\"]", Keys::of(phase).ladder));
    let decision = Decision { phase, table: Some(table.clone()), decided_by: origin, location, tier: Some(tier), notices };
    Ok(decision.describe(holder.record.as_ref()))
}

/// Whether some length of a tier skips, and calibration did not record the tier as unreached.
pub fn is_reached(tables: &PhaseTables, tier: Tier) -> bool {
    let skips = tables.ladder.get(&tier).is_some_and(|t| t.first_skippable_length().is_some());
    skips && tables.record.as_ref().is_none_or(|r| r.never_reached(tier).is_none())
}

fn at(place: &str, key: &str) -> String {
    if place.is_empty() { key.into() } else { format!("{place}: {key}") }
}

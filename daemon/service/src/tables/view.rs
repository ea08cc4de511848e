//! What is in force as the interfaces show it.

use super::store::{Store, named, table_set};
use skip_client::protocol::tables::short_hash;
use skip_client::protocol::{DecidedBy, Pending, PhaseTable, TableRow, TableShow, Tier, TierList};
use skip_engine::EngineHandle;
use skip_engine::handle::TableSet;
use skip_engine::stats::Status;
use skip_kernels::attention::SkipCounters;
use skip_tables::{Alarm, Decision, Notice, Origin, PerPhase, Phase, PhaseTables, ScaleTable, is_reached};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tables in force, as published after each change; readers never wait for the owner.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The state it was taken of.
    pub store: Store,
    /// Why each phase has its table.
    pub decisions: PerPhase<Decision>,
    /// What the engine has.
    pub set: TableSet,
    /// Changes since the start.
    pub version: PerPhase<u64>,
    /// Votes under the table before it came in force.
    pub baseline: PerPhase<SkipCounters>,
    /// Drift alarms that stand.
    pub alarms: PerPhase<Option<Alarm>>,
    /// The running trial's deadline, by both clocks; read once, so that all who look see one time.
    pub deadline: Option<(Instant, u64)>,
}

impl Snapshot {
    /// The first one.
    pub fn new(store: Store) -> Self {
        let decisions = store.decide();
        let set = table_set(&decisions, &TableSet::default());
        let (version, baseline, alarms) = Default::default();
        Self { store, decisions, set, version, baseline, alarms, deadline: None }
    }

    /// Follows the trial's deadline.
    pub fn note_deadline(&mut self) {
        let deadline = self.store.retarget().trial().map(|t| t.deadline());
        if deadline != self.deadline.map(|(known, _)| known) {
            self.deadline = deadline.map(|at| (at, unix_ms(at)));
        }
    }

    /// Both phases; `engine` knows the measured shares.
    pub fn show(&self, engine: Option<&EngineHandle>) -> TableShow {
        let status = engine.map(EngineHandle::status);
        let [prefill, decode] = Phase::ALL.map(|phase| self.phase(phase, status.as_ref()));
        TableShow { prefill, decode }
    }

    fn phase(&self, phase: Phase, status: Option<&Status>) -> PhaseTable {
        let decision = &self.decisions[phase];
        let mut notices: Vec<String> = decision.notices.iter().map(Notice::to_string).collect();
        if let Some(alarm) = self.alarms[phase] {
            notices.push(alarm.to_string());
        }
        if self.store.suspended[phase] {
            notices.push("dense because of drift, until the next set-table or reload".into());
        }
        PhaseTable {
            phase,
            tier: decision.tier.filter(|_| decision.table.is_some()).map(|t| t.to_string()),
            rows: decision.table.as_ref().map(rows),
            max_length: decision.table.as_ref().and_then(ScaleTable::max_len),
            decided_by: decided_by(decision.decided_by),
            location: decision.location.clone(),
            hash: self.set.phase(phase).map(|t| t.hash.clone()),
            version: self.version[phase],
            notices,
            pending: self.pending(phase),
            measured: self.votes(phase, status).filter(|c| c.votes > 0).map(|c| c.share()),
        }
    }

    /// Votes under the table since it came in force.
    pub fn votes(&self, phase: Phase, status: Option<&Status>) -> Option<SkipCounters> {
        let now = counters(phase, &self.set, status?);
        let before = self.baseline[phase];
        Some(SkipCounters {
            votes: now.votes.saturating_sub(before.votes),
            skipped: now.skipped.saturating_sub(before.skipped),
            bytes_not_read: now.bytes_not_read.saturating_sub(before.bytes_not_read),
        })
    }

    fn pending(&self, phase: Phase) -> Option<Pending> {
        let trial = self.store.retarget().trial().filter(|t| t.covers(phase))?;
        let remaining = trial.deadline().saturating_duration_since(Instant::now());
        let before = self.store.before_trial(phase)?;
        let previous = match (&before.tier, named(&before, None)) {
            (Some(tier), Some(_)) => Some(tier.to_string()),
            (None, Some(table)) => Some(short_hash(&table.hash)),
            (_, None) => None,
        };
        Some(Pending {
            remaining_ms: millis(remaining.as_millis()),
            deadline_unix_ms: self.deadline.map_or_else(|| unix_ms(trial.deadline()), |(_, ms)| ms),
            previous,
            persist: trial.persists(phase),
        })
    }

    /// The checkpoint's ladders.
    pub fn tiers(&self) -> TierList {
        let ladder = |phase: Phase| {
            let tables = self.store.checkpoint().file.phase(phase);
            let in_force = self.set.phase(phase).map(|t| &t.table);
            tables.ladder.iter().map(|(&tier, table)| tier_row(tables, tier, table, in_force)).collect()
        };
        TierList { prefill: ladder(Phase::Prefill), decode: ladder(Phase::Decode) }
    }
}

fn tier_row(tables: &PhaseTables, tier: skip_tables::Tier, table: &ScaleTable, in_force: Option<&ScaleTable>) -> Tier {
    Tier {
        name: tier.to_string(),
        rows: rows(table),
        in_force: in_force == Some(table),
        unreached_bins: table.rows().iter().filter(|r| r.s == 0.0).map(|r| r.first_length).collect(),
        reached: is_reached(tables, tier),
    }
}

/// The engine's votes so far under the table of a set.
pub fn counters(phase: Phase, set: &TableSet, status: &Status) -> SkipCounters {
    let hash = set.phase(phase).map(|t| &t.hash);
    let found = status.by_table.iter().find(|t| t.phase == phase && Some(&t.table.hash) == hash);
    found.map(|t| t.counters).unwrap_or_default()
}

fn rows(table: &ScaleTable) -> Vec<TableRow> {
    table.rows().iter().map(|r| (r.first_length, r.s)).collect()
}

fn decided_by(origin: Origin) -> DecidedBy {
    match origin {
        Origin::SetTable => DecidedBy::SetTable,
        Origin::Persisted => DecidedBy::Persisted,
        Origin::Admin => DecidedBy::Admin,
        Origin::Update => DecidedBy::Update,
        Origin::Checkpoint => DecidedBy::Checkpoint,
        Origin::Default => DecidedBy::Default,
    }
}

/// A moment to come, by the wall clock.
fn unix_ms(at: Instant) -> u64 {
    let ahead = at.saturating_duration_since(Instant::now());
    millis((SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + ahead).as_millis())
}

fn millis(ms: u128) -> u64 {
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// Tells the log which tables are in force in these phases, and what is to be known of them.
pub fn log(snapshot: &Snapshot, phases: impl IntoIterator<Item = Phase>) {
    for phase in phases {
        let decision = &snapshot.decisions[phase];
        let what = match (&decision.table, decision.tier) {
            (None, _) => "dense".to_owned(),
            (Some(_), Some(tier)) => format!("tier {tier}"),
            (Some(table), None) => format!("{} rows", table.rows().len()),
        };
        tracing::info!(%phase, decided_by = %decision.decided_by, location = decision.location, "table in force: {what}");
        for notice in &decision.notices {
            match notice {
                // What a calibrated table is expected to say of itself.
                Notice::DenseBins { .. } | Notice::DenseBeyond(_) => tracing::info!(%phase, "{notice}"),
                notice => tracing::warn!(%phase, "{notice}"),
            }
        }
    }
}

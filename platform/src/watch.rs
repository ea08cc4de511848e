//! What became of a pin: one look at the nodes, the clocks, the counters and the temperatures.

use crate::clocks::{CPUFREQ, GPUS, policy_current};
use crate::nvpmodel;
use crate::pin::{Node, Outcome, Role, shown_text};
use crate::sensors::{counters, zones};
use crate::state::{Phase, Snapshot, StateFile, boot_id};
use crate::sysfs::{Sysfs, number};
use serde::Serialize;

/// How clocks stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockState {
    /// No profile is applied.
    #[default]
    Unpinned,
    /// The nodes say what the profile wrote.
    Pinned,
    /// They do, and the hardware does something else, or may.
    Throttled,
    /// They do not: somebody else changed them.
    Uncontrolled,
}

impl ClockState {
    /// All, in order.
    pub const ALL: [ClockState; 4] = [ClockState::Unpinned, ClockState::Pinned, ClockState::Throttled, ClockState::Uncontrolled];

    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            ClockState::Unpinned => "unpinned",
            ClockState::Pinned => "pinned",
            ClockState::Throttled => "throttled",
            ClockState::Uncontrolled => "uncontrolled",
        }
    }
}

/// What one look found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Watched {
    /// How clocks stand.
    pub state: ClockState,
    /// The profile that is applied.
    pub profile: Option<String>,
    /// Why not pinned.
    pub reasons: Vec<String>,
    /// What the profile wanted and did not get.
    pub refused: Vec<String>,
    /// Domains of which a node took its value.
    pub domains: Vec<String>,
}

impl Watched {
    /// Whether the profile pins a GPU; one without devfreq is only watched.
    pub fn pins_gpu(&self) -> bool {
        self.domains.iter().any(|domain| GPUS.contains(&domain.as_str()))
    }
}

/// Share of the pinned frequency below which a processor counts as slowed down. An idle one's counters read low, so that this is no finer.
const PROCESSOR: (u64, u64) = (3, 4);

/// One look. It reads, and never writes.
pub fn watch(sysfs: &dyn Sysfs, state: &StateFile) -> Watched {
    let unpinned = |reasons| Watched { reasons, ..Watched::default() };
    let snapshot = match state.load() {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) => return unpinned(Vec::new()),
        Err(error) => return unpinned(vec![error.to_string()]),
    };
    if boot_id(sysfs).is_none_or(|ours| ours != snapshot.boot_id) {
        return unpinned(vec![format!("profile {} was applied before a restart, which has reset the clocks", snapshot.profile)]);
    }
    let refused = snapshot.nodes.iter().filter(|node| matches!(node.outcome, Outcome::Refused { .. } | Outcome::Absent)).map(Node::words);
    let taken = snapshot.nodes.iter().filter(|node| node.outcome == Outcome::Pinned);
    let mut domains: Vec<String> = taken.map(|node| node.domain.clone()).collect();
    domains.dedup();
    let mut found = Watched { profile: Some(snapshot.profile.clone()), refused: refused.collect(), domains, ..Watched::default() };
    let changed = changed(sysfs, &snapshot);
    if !changed.is_empty() {
        return Watched { state: ClockState::Uncontrolled, reasons: changed, ..found };
    }
    found.reasons = throttled(sysfs, &snapshot);
    found.state = if found.reasons.is_empty() { ClockState::Pinned } else { ClockState::Throttled };
    found
}

/// What somebody else changed.
fn changed(sysfs: &dyn Sysfs, snapshot: &Snapshot) -> Vec<String> {
    if snapshot.phase == Phase::Writing {
        return vec![format!("profile {} is being applied, or that was broken off", snapshot.profile)];
    }
    let mut reasons = Vec::new();
    for node in snapshot.nodes.iter().filter(|node| node.outcome == Outcome::Pinned) {
        // A node that only root may read is known to nobody else.
        match sysfs.read(&node.path).map(|text| shown_text(&text)) {
            Ok(now) if now != node.wanted => reasons.push(format!("{} is {now}, not {}: changed by somebody else", node.path, node.wanted)),
            Err(crate::Fault::Absent) => reasons.push(format!("{} is gone", node.path)),
            _ => {}
        }
    }
    if let (Some(then), Ok(now)) = (&snapshot.mode, nvpmodel::current(sysfs))
        && *then != now
    {
        reasons.push(format!("the power mode is {now}; the profile was applied in {then}"));
    }
    reasons
}

/// What holds the clocks down, or has done so since the profile was applied.
fn throttled(sysfs: &dyn Sysfs, snapshot: &Snapshot) -> Vec<String> {
    let mut reasons = slow(sysfs, snapshot);
    for counter in counters(sysfs) {
        let then = snapshot.counters.get(&counter.path).copied().unwrap_or(counter.count);
        if counter.count > then {
            reasons.push(format!("{} rose by {} since the profile was applied", counter.path, counter.count - then));
        }
    }
    reasons.extend(hot(sysfs, snapshot.tolerated));
    reasons
}

/// Domains that run below what they were pinned to.
pub(crate) fn slow(sysfs: &dyn Sysfs, snapshot: &Snapshot) -> Vec<String> {
    let mut reasons = Vec::new();
    for node in snapshot.nodes.iter().filter(|node| node.outcome == Outcome::Pinned && node.role == Role::Min) {
        let Ok(wanted) = node.wanted.parse::<u64>() else { continue };
        let folder = node.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let (current, least) = match folder.starts_with(CPUFREQ) {
            true => (policy_current(sysfs, folder), wanted / PROCESSOR.1 * PROCESSOR.0),
            false => (number(sysfs, &format!("{folder}/cur_freq")), wanted),
        };
        // A domain that is switched off runs at nothing, and is not held down.
        if let Ok(current) = current.as_ref()
            && (1..least).contains(current)
        {
            reasons.push(format!("{} runs at {current}, below its minimum of {wanted}", node.domain));
        }
    }
    reasons
}

/// Zones that are warmer than is tolerated; None: than their own lowest trip point.
pub(crate) fn hot(sysfs: &dyn Sysfs, tolerated: Option<f64>) -> Vec<String> {
    let too_hot = |zone: crate::Zone| {
        let (celsius, limit) = (zone.celsius?, tolerated.or(zone.trip)?);
        (celsius > limit).then(|| format!("{} is at {celsius:.1} °C, above {limit:.1}", zone.kind))
    };
    zones(sysfs).into_iter().filter_map(too_hot).collect()
}

//! Snapshot, then write, then read back.

use super::node::{Node, Outcome, Role};
use super::restore::put_back;
use super::{PinError, plan};
use crate::board::{Board, BoardKind};
use crate::fault::Fault;
use crate::profile::Profile;
use crate::sensors::counters;
use crate::state::{Phase, Snapshot, StateFile, boot_id};
use crate::sysfs::Sysfs;
use serde::Serialize;

/// What came of a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Applied {
    /// Its name.
    pub profile: String,
    /// The power mode in force; null where nobody tells.
    pub mode: Option<String>,
    /// Whether every node reads back as wanted.
    pub whole: bool,
    /// Every node that was wanted.
    pub nodes: Vec<Node>,
    /// What a reader must know beside.
    pub notes: Vec<String>,
}

/// Whether a profile is for this board and the power mode it is in; what a reader must know beside.
///
/// # Errors
/// [`PinError::Board`], [`PinError::Mode`].
pub fn fits(board: &Board, profile: &Profile) -> Result<Vec<String>, PinError> {
    fits_on(board.identify().kind, &board.mode(), profile)
}

fn fits_on(kind: BoardKind, mode: &Result<String, Fault>, profile: &Profile) -> Result<Vec<String>, PinError> {
    if let Some(wanted) = profile.board.filter(|&wanted| wanted != kind) {
        return Err(PinError::Board { profile: profile.name.clone(), wanted: wanted.name(), found: kind.name() });
    }
    match (&profile.mode, mode) {
        (Some(wanted), Ok(found)) if wanted != found => {
            Err(PinError::Mode { profile: profile.name.clone(), wanted: wanted.clone(), found: found.clone() })
        }
        (Some(wanted), Err(fault)) => Ok(vec![format!("nobody tells the power mode ({fault}); the profile is for {wanted}")]),
        _ => Ok(Vec::new()),
    }
}

/// Applies a profile, after restoring what an earlier one changed since this boot.
///
/// # Errors
/// [`PinError`]; no node is then left changed.
pub fn apply(board: &Board, profile: &Profile, state: &StateFile) -> Result<Applied, PinError> {
    apply_on(board.sysfs(), board.identify().kind, board.mode(), profile, state)
}

pub(super) fn apply_on(
    sysfs: &dyn Sysfs,
    kind: BoardKind,
    mode: Result<String, Fault>,
    profile: &Profile,
    state: &StateFile,
) -> Result<Applied, PinError> {
    let notes = fits_on(kind, &mode, profile)?;
    let boot = boot_id(sysfs).ok_or(PinError::NoBootId)?;
    let _lock = state.lock()?;
    if let Some(earlier) = state.load()?.filter(|earlier| earlier.boot_id == boot) {
        if !put_back(sysfs, &earlier).failed.is_empty() {
            return Err(PinError::Earlier(earlier.profile));
        }
        state.remove()?;
    }
    let mut snapshot = Snapshot::new(boot, profile.name.clone());
    snapshot.nodes = plan::plan(sysfs, profile);
    snapshot.mode = mode.ok();
    snapshot.tolerated = profile.tolerated;
    let nothing = |nodes| PinError::Nothing { profile: profile.name.clone(), nodes };
    if snapshot.nodes.iter().all(|node| node.before.is_none()) {
        return Err(nothing(snapshot.nodes));
    }
    state.save(&snapshot)?;
    write(sysfs, &mut snapshot.nodes);
    if !snapshot.nodes.iter().any(|node| node.outcome == Outcome::Pinned) && put_back(sysfs, &snapshot).failed.is_empty() {
        state.remove()?;
        return Err(nothing(snapshot.nodes));
    }
    snapshot.phase = Phase::Applied;
    snapshot.counters = counters(sysfs).into_iter().map(|counter| (counter.path, counter.count)).collect();
    state.save(&snapshot)?;
    let whole = snapshot.nodes.iter().all(|node| node.outcome == Outcome::Pinned);
    Ok(Applied { profile: snapshot.profile, mode: snapshot.mode, whole, nodes: snapshot.nodes, notes })
}

fn write(sysfs: &dyn Sysfs, nodes: &mut [Node]) {
    for at in 0..nodes.len() {
        let (done, rest) = nodes.split_at_mut(at);
        let Some(node) = rest.first_mut().filter(|node| node.before.is_some()) else { continue };
        let low = done.last().filter(|low| node.role == Role::Max && low.domain == node.domain && low.role == Role::Min);
        if low.is_some_and(|low| low.outcome != Outcome::Pinned) {
            // Its minimum may be above what the maximum would become.
            node.outcome = Outcome::Refused { why: "left as it is, as the minimum was refused".into(), read_back: None };
            continue;
        }
        node.pin(sysfs);
    }
    nodes.iter_mut().for_each(|node| node.verify(sysfs));
}

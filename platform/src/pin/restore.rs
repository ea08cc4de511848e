//! Back to what the snapshot says.

use super::PinError;
use super::node::{Node, Outcome, Role, shown};
use crate::board::Board;
use crate::fault::Fault;
use crate::state::{Phase, Snapshot, StateFile, boot_id};
use crate::sysfs::Sysfs;
use serde::Serialize;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The profile that was in force; null: there was no snapshot, and nothing to do.
    pub profile: Option<String>,
    /// Nodes that had to be written.
    pub written: usize,
    /// Nodes that somebody else changed since, and that are left so.
    pub left: Vec<String>,
    /// Nodes that refuse; the snapshot is kept, to try again.
    pub failed: Vec<String>,
}

/// Restores what a profile changed, whether it was applied or broken off, and forgets it. Without a snapshot there is nothing to do.
///
/// # Errors
/// The snapshot is of another boot, or cannot be read.
pub fn restore(board: &Board, state: &StateFile) -> Result<Restored, PinError> {
    restore_on(board.sysfs(), state, None)
}

/// The same, but what another profile than this one changed stays.
///
/// # Errors
/// As [`restore`].
pub fn restore_of(board: &Board, state: &StateFile, profile: &str) -> Result<Restored, PinError> {
    restore_on(board.sysfs(), state, Some(profile))
}

pub(super) fn restore_on(sysfs: &dyn Sysfs, state: &StateFile, of: Option<&str>) -> Result<Restored, PinError> {
    if !state.path().exists() {
        return Ok(Restored::default());
    }
    let _lock = state.lock()?;
    let Some(snapshot) = state.load()?.filter(|snapshot| of.is_none_or(|of| of == snapshot.profile)) else {
        return Ok(Restored::default());
    };
    let ours = boot_id(sysfs).ok_or(PinError::NoBootId)?;
    if snapshot.boot_id != ours {
        return Err(PinError::OtherBoot { theirs: snapshot.boot_id, ours });
    }
    let restored = put_back(sysfs, &snapshot);
    if restored.failed.is_empty() {
        state.remove()?;
    }
    Ok(restored)
}

/// Writes every node that says something else than before. The last domain written is the first to go back.
pub(super) fn put_back(sysfs: &dyn Sysfs, snapshot: &Snapshot) -> Restored {
    let mut back =
        Back { sysfs, phase: snapshot.phase, found: Restored { profile: Some(snapshot.profile.clone()), ..Restored::default() } };
    let nodes: Vec<&Node> = snapshot.nodes.iter().filter(|node| node.before.is_some()).collect();
    let mut upto = nodes.len();
    while let Some(last) = upto.checked_sub(1).map(|at| nodes[at]) {
        let low = upto.checked_sub(2).map(|at| nodes[at]).filter(|low| low.role == Role::Min && low.domain == last.domain);
        match low {
            Some(low) if last.role == Role::Max => {
                back.pair(low, last);
                upto -= 2;
            }
            _ => {
                back.one(last);
                upto -= 1;
            }
        }
    }
    back.found
}

struct Back<'a> {
    sysfs: &'a dyn Sysfs,
    phase: Phase,
    found: Restored,
}

impl Back<'_> {
    /// Minimum and maximum, in the order in which min ≤ max holds throughout.
    fn pair(&mut self, low: &Node, high: &Node) {
        let now = self.number(high);
        let before = high.before.as_deref().and_then(|text| shown(text).parse::<u64>().ok());
        if now < before {
            self.one(high);
            self.minimum(low, high);
        } else {
            self.minimum(low, high);
            self.one(high);
        }
    }

    /// A minimum always goes back, that no domain stays fast for ever; not above a maximum that somebody else has lowered.
    fn minimum(&mut self, low: &Node, high: &Node) {
        let before = low.before.as_deref().and_then(|text| shown(text).parse::<u64>().ok());
        match self.number(high) {
            Some(most) if before > Some(most) => self.write(low, &most.to_string()),
            _ => self.write(low, low.before.as_deref().unwrap_or_default()),
        }
    }

    fn one(&mut self, node: &Node) {
        let now = match self.sysfs.read(&node.path) {
            Ok(text) => shown(&text),
            Err(fault) => return self.fault(node, &fault),
        };
        let ours = match &node.outcome {
            Outcome::Refused { read_back: Some(says), .. } => now == *says || now == node.wanted,
            _ => now == node.wanted,
        };
        let before = node.before.as_deref().unwrap_or_default();
        // Broken off half-way, nobody has noted what the node made of the value.
        if self.phase == Phase::Applied && !ours && now != shown(before) {
            return self.found.left.push(format!("{}: {now}, set by somebody else", node.path));
        }
        self.write(node, before);
    }

    fn write(&mut self, node: &Node, text: &str) {
        match self.sysfs.read(&node.path) {
            Ok(now) if now == text => return,
            Err(fault) => return self.fault(node, &fault),
            Ok(_) => {}
        }
        match self.sysfs.write(&node.path, text) {
            Ok(()) => self.found.written += 1,
            Err(fault) => self.fault(node, &fault),
        }
        match self.sysfs.read(&node.path) {
            Ok(now) if shown(&now) != shown(text) && self.failing(node).is_none() => {
                self.found.failed.push(format!("{}: says {} instead of {}", node.path, shown(&now), shown(text)));
            }
            _ => {}
        }
    }

    fn failing(&self, node: &Node) -> Option<&String> {
        self.found.failed.iter().find(|line| line.starts_with(&format!("{}: ", node.path)))
    }

    fn fault(&mut self, node: &Node, fault: &Fault) {
        // A processor that is switched off, or a driver that is gone, has nothing to restore.
        if *fault != Fault::Absent {
            self.found.failed.push(format!("{}: {fault}", node.path));
        }
    }

    fn number(&self, node: &Node) -> Option<u64> {
        shown(&self.sysfs.read(&node.path).ok()?).parse().ok()
    }
}

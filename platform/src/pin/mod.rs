//! Pinning: snapshot, write, read back; and restoring what the snapshot says.

mod apply;
mod node;
mod plan;
mod restore;
#[cfg(test)]
mod tests;

pub use apply::{Applied, apply, fits};
pub(crate) use node::shown as shown_text;
pub use node::{Node, Outcome, Role};
pub use restore::{Restored, restore, restore_of};

use crate::state::StateError;

/// Why nothing is pinned, or nothing restored. Where this is the answer of [`apply`], no node is left changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The profile is for another board.
    #[error("profile {profile} is for {wanted}, and this board is {found}")]
    Board {
        /// The profile.
        profile: String,
        /// Its board.
        wanted: &'static str,
        /// This one.
        found: &'static str,
    },
    /// The power mode is another.
    #[error("profile {profile} is for power mode {wanted}, and the board is in {found}: modes are set with nvpmodel, by a person")]
    Mode {
        /// The profile.
        profile: String,
        /// Its mode.
        wanted: String,
        /// The one in force.
        found: String,
    },
    /// No node took it.
    #[error("nothing of profile {profile} can be pinned here")]
    Nothing {
        /// The profile.
        profile: String,
        /// What was looked for, and why not.
        nodes: Vec<Node>,
    },
    /// The snapshot is from before a restart, which has reset the nodes.
    #[error("the snapshot is of another boot ({theirs}, now {ours}): the restart has reset the clocks, and nothing is restored")]
    OtherBoot {
        /// The snapshot's.
        theirs: String,
        /// This one.
        ours: String,
    },
    /// Nobody says which boot this is, so that a snapshot could not be told from an old one.
    #[error("/proc/sys/kernel/random/boot_id cannot be read: nothing is pinned that could not be restored safely")]
    NoBootId,
    /// An earlier profile's nodes did not all go back.
    #[error("the nodes of profile {0} could not all be restored; nothing else is pinned before they are")]
    Earlier(String),
    /// The file of the snapshot.
    #[error(transparent)]
    State(#[from] StateError),
}

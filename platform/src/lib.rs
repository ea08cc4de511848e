//! The board: what it is, what its clocks do, and pinning them by profile.
//!
//! Everything goes through [`Sysfs`] with a root, so that recorded trees stand in for boards. A node may be absent, unreadable or lying; each is a
//! [`Fault`], never a panic. Nothing here loads a GPU library but [`nvml`], and that one at run time.

mod board;
mod clocks;
mod fault;
pub mod nvml;
pub mod nvpmodel;
mod pin;
mod profile;
mod sensors;
mod state;
mod strain;
mod sysfs;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod watch;

pub use board::{Board, BoardKind, Driver, Identity, Module};
pub use clocks::{Devfreq, Policy, devfreq, emc, gpu_devfreqs, policies};
pub use fault::Fault;
pub use pin::{Applied, Node, Outcome, PinError, Restored, Role, apply, fits, restore, restore_of};
pub use profile::{ADMIN_PROFILES, Profile, ProfileError, Profiles, Target};
pub use sensors::{Counter, Memory, Zone, counters, fan, memory, zones};
pub use state::{Phase, Snapshot, StateError, StateFile};
pub use strain::Strain;
pub use sysfs::{Rooted, Sysfs};
#[doc(hidden)]
pub use tree::lay_tree;
pub use watch::{ClockState, Watched, watch};

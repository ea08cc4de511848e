//! Attention that leaves out negligible work, and the other operators of a decoder, behind one [`Backend`] trait.
//!
//! Everything a decoder needs is an operator here; the CPU implementation is the embedded default and the reference for the others.

pub mod attention;
pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod files;
pub mod gaps;
pub mod ledger;
pub mod nvfp4;
pub mod pages;
pub mod sampling;
pub mod select;
mod step;
pub mod system;

pub use backend::{Backend, BackendInfo, KernelError};
pub use pages::{KvFormat, PAGE};
pub use skip_tables::{Phase, ScaleTable};

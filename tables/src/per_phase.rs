//! One value a phase.

use crate::Phase;
use std::ops::{Index, IndexMut};

/// One value for prefill and one for decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPhase<T> {
    /// Prefill's.
    pub prefill: T,
    /// Decode's.
    pub decode: T,
}

impl<T> PerPhase<T> {
    /// Asks `f` for each phase.
    pub fn from_fn(mut f: impl FnMut(Phase) -> T) -> Self {
        Self { prefill: f(Phase::Prefill), decode: f(Phase::Decode) }
    }
}

impl<T> Index<Phase> for PerPhase<T> {
    type Output = T;

    fn index(&self, phase: Phase) -> &T {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }
}

impl<T> IndexMut<Phase> for PerPhase<T> {
    fn index_mut(&mut self, phase: Phase) -> &mut T {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }
}

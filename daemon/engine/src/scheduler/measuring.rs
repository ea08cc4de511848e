//! Requests that are measured: each has steps of its own, densely computed, in turn with the other requests of its class.

use super::{Plan, Scheduler, Sequence, Speed};
use crate::handle::Priority;
use skip_kernels::Phase;

impl Scheduler {
    /// The measured sequence whose step is next, if it is one's turn.
    pub(super) fn measured_turn(&mut self, class: Priority) -> Option<usize> {
        let runs = |s: &Sequence| s.arrival.request.priority == class && (s.phase() == Phase::Prefill || s.goes_on());
        let next = self.running.iter().position(|s| runs(s) && s.arrival.request.measure);
        let others = self.running.iter().any(|s| runs(s) && !s.arrival.request.measure);
        self.measured_last = next.is_some() && !(others && self.measured_last);
        next.filter(|_| self.measured_last)
    }

    /// Its step; none beside one that has prompt tokens too.
    pub(super) fn measured_plan(&mut self, index: usize, beside: Option<&Plan>) -> Plan {
        let s = &self.running[index];
        let class = s.arrival.request.priority;
        let range = match s.phase() {
            Phase::Decode => s.cached..s.tokens.len(),
            Phase::Prefill if beside.is_some_and(|step| step.tokens(Phase::Prefill) > 0) => return Plan::default(),
            Phase::Prefill => s.cached..Speed::chunk_end(s.cached, self.measured_speed.tokens(0), s.prompt_len()),
        };
        Plan { seqs: vec![self.planned(index, range)], uploads: std::mem::take(&mut self.uploads), class }
    }
}

//! The share of the time that background work computes while nothing else does. A step is paid for with the time that it and the rest after it
//! take together; rest that nobody needed is not saved up.

use std::time::{Duration, Instant};

/// When the next step of background work may begin.
#[derive(Debug)]
pub(super) struct Duty {
    /// Of the time, above 0; 1 is no limit.
    share: f64,
    next: Option<Instant>,
}

impl Duty {
    /// `percent` of the time, 1 to 100.
    pub fn new(percent: u32) -> Self {
        Self { share: f64::from(percent.clamp(1, 100)) / 100.0, next: None }
    }

    /// Whether there is one.
    pub fn limits(&self) -> bool {
        self.share < 1.0
    }

    /// When background work may go on; None: now.
    pub fn rests(&self, now: Instant) -> Option<Instant> {
        self.next.filter(|next| self.limits() && *next > now)
    }

    /// A step of it took the last `elapsed`.
    pub fn spend(&mut self, elapsed: Duration, now: Instant) {
        let whole = elapsed.div_f64(self.share);
        self.next = now.checked_add(whole.saturating_sub(elapsed));
    }
}

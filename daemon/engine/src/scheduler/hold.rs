//! Background requests held back: they wait where they are, while others are admitted and what runs goes on.

use super::{Priority, Scheduler};

impl Scheduler {
    /// Whether background requests are held back from now on.
    pub fn hold_background(&mut self, hold: bool) {
        self.holds_background = hold;
    }

    /// Whether they are.
    pub fn holds_background(&self) -> bool {
        self.holds_background
    }

    /// Requests that wait because of it.
    pub fn held(&self) -> usize {
        self.waiting.iter().filter(|w| !self.admits(w.arrival.request.priority)).count()
    }

    /// Nothing is there but what is held back.
    pub fn is_held(&self) -> bool {
        self.running.is_empty() && !self.waiting.is_empty() && self.held() == self.waiting.len()
    }

    /// Whether requests of a class are admitted at all.
    pub(super) fn admits(&self, class: Priority) -> bool {
        !(self.holds_background && class == Priority::Background)
    }
}

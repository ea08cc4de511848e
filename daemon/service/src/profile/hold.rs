//! How long background requests are held back: for as long as clocks are held down, and a little longer, so that work which heats the board is not let
//! go at the first cool look.

use std::time::Duration;
use tokio::time::Instant;

/// How long behind the last look that found clocks held down.
const LINGER: Duration = Duration::from_secs(5);

/// Since when.
#[derive(Debug, Default)]
pub(super) struct Hold {
    last: Option<Instant>,
}

impl Hold {
    /// Whether they are held after a look at this time.
    pub fn after(&mut self, strained: bool, now: Instant) -> bool {
        if strained {
            self.last = Some(now);
        }
        self.last.is_some_and(|last| now.saturating_duration_since(last) < LINGER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_a_little_longer_than_the_strain_and_begins_anew_with_it() {
        let (mut hold, began) = (Hold::default(), Instant::now());
        let mut at = |seconds, strained| hold.after(strained, began + Duration::from_secs(seconds));
        assert!(!at(0, false));
        assert!(at(2, true) && at(6, false) && !at(7, false));
        assert!(at(8, true) && at(12, true) && at(16, false) && !at(17, false));
    }
}

//! What time it is, as far as that can be known on a board whose clock may have stopped with its power.

use skip_updates::{BUILT_AFTER, Check, Rejection};
use std::time::{SystemTime, UNIX_EPOCH};

/// A clock and what is known of the time without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What the clock shows, in seconds since 1970.
    pub now: u64,
    /// A moment that has passed for sure: when this program was written, or a signed update was made.
    pub passed: u64,
    /// Whether a clock that is behind that moment is put up with: expiry is then judged at that moment.
    pub relax: bool,
}

impl Clock {
    /// The system's clock.
    pub fn system(passed: u64, relax: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { now, passed: passed.max(BUILT_AFTER), relax }
    }

    /// The moment at which expiry is judged, once a signed update is known to have been made at `created`. A clock behind what has passed is wrong.
    /// Relaxing takes the latest moment that has passed for sure in its place: what had expired by then stays expired, and nothing else is relaxed.
    ///
    /// # Errors
    /// [`Check::Clock`].
    pub fn judge(&self, created: u64) -> Result<u64, Rejection> {
        let passed = self.passed.max(created);
        if self.now >= passed {
            return Ok(self.now);
        }
        if self.relax {
            return Ok(passed);
        }
        let message = format!(
            "the clock shows {}, and {} has passed: expiry cannot be judged; set the clock, or relax expiry alone (--relax-expiry)",
            shown(self.now),
            shown(passed)
        );
        Err(Rejection::new(Check::Clock, message))
    }
}

/// A moment for people.
pub fn shown(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("second {seconds}"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_behind_what_has_passed_is_refused_by_name() {
        let clock = Clock { now: 99, passed: 100, relax: false };
        assert_eq!(clock.judge(0).unwrap_err().check, Check::Clock);
        let clock = Clock { now: 100, ..clock };
        assert_eq!(clock.judge(100), Ok(100));
        assert_eq!(clock.judge(101).unwrap_err().check, Check::Clock, "the bundle itself is proof that its time has passed");
    }

    #[test]
    fn relaxing_judges_at_the_latest_moment_that_is_sure_and_leaves_a_right_clock_alone() {
        let clock = Clock { now: 5, passed: 100, relax: true };
        assert_eq!((clock.judge(50), clock.judge(120)), (Ok(100), Ok(120)));
        assert_eq!(Clock { now: 500, ..clock }.judge(120), Ok(500));
    }
}

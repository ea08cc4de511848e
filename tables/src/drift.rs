//! Whether a table skips in production what its tier promised.

/// When measured and promised shares have parted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftRules {
    /// Votes a window; fewer say little.
    pub window: u64,
    /// Largest difference between shares that is still agreement, 0 to 1.
    pub tolerance: f64,
    /// Windows in a row that must disagree before the alarm.
    pub patience: u32,
}

impl Default for DriftRules {
    /// Windows of a million votes (a few long prompts), 15 points, three in a row.
    fn default() -> Self {
        Self { window: 1_000_000, tolerance: 0.15, patience: 3 }
    }
}

/// Measured and promised shares have parted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// Share of the last window, 0 to 1.
    pub measured: f64,
    /// The tier's share.
    pub promised: f64,
}

impl Alarm {
    /// More is skipped than the tier stands for, which costs accuracy; the other way costs only speed.
    pub fn skips_too_much(&self) -> bool {
        self.measured > self.promised
    }
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "drift: {:.1} % of votes skipped lately, the tier stands for {:.1} %", self.measured * 100.0, self.promised * 100.0)
    }
}

/// Votes under one table since it came in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drift {
    promised: Option<f64>,
    votes: u64,
    skipped: u64,
    window: (u64, u64),
    disagreed: u32,
    alarm: Option<Alarm>,
}

impl Drift {
    /// Starts counting; `promised` is the tier's share, None for a table of no tier, which is measured but never alarmed about.
    pub fn new(promised: Option<f64>) -> Self {
        Self { promised, ..Self::default() }
    }

    /// Adds one request's votes; true where the alarm came or went.
    pub fn observe(&mut self, votes: u64, skipped: u64, rules: &DriftRules) -> bool {
        self.votes = self.votes.saturating_add(votes);
        self.skipped = self.skipped.saturating_add(skipped);
        self.window = (self.window.0.saturating_add(votes), self.window.1.saturating_add(skipped));
        let (Some(promised), true) = (self.promised, self.window.0 >= rules.window.max(1)) else {
            return false;
        };
        let measured = self.window.1 as f64 / self.window.0 as f64;
        self.window = (0, 0);
        if (measured - promised).abs() <= rules.tolerance {
            self.disagreed = 0;
            return self.alarm.take().is_some();
        }
        self.disagreed = self.disagreed.saturating_add(1);
        if self.disagreed < rules.patience {
            return false;
        }
        self.alarm.replace(Alarm { measured, promised }).is_none()
    }

    /// Share skipped since the table came in force; None before the first vote.
    pub fn measured(&self) -> Option<f64> {
        (self.votes > 0).then(|| self.skipped as f64 / self.votes as f64)
    }

    /// The alarm, while it stands.
    pub fn alarm(&self) -> Option<Alarm> {
        self.alarm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: DriftRules = DriftRules { window: 100, tolerance: 0.1, patience: 2 };

    #[test]
    fn the_alarm_waits_for_windows_in_a_row_and_goes_with_agreement() {
        let mut drift = Drift::new(Some(0.5));
        assert!(!drift.observe(100, 90, &RULES), "one window");
        assert!(!drift.observe(100, 55, &RULES), "agreement starts over");
        assert!(!drift.observe(100, 90, &RULES));
        assert!(drift.observe(100, 90, &RULES));
        assert!(drift.alarm().unwrap().skips_too_much());
        assert!(!drift.observe(100, 20, &RULES), "it stands, with the newest share");
        assert!(!drift.alarm().unwrap().skips_too_much());
        assert!(drift.observe(100, 50, &RULES));
        assert_eq!(drift.alarm(), None);
        assert_eq!(drift.measured(), Some(395.0 / 600.0));
    }

    #[test]
    fn few_votes_say_nothing() {
        let mut drift = Drift::new(Some(0.5));
        assert_eq!(drift.measured(), None);
        for _ in 0..9 {
            assert!(!drift.observe(11, 11, &RULES));
        }
        assert_eq!((drift.measured(), drift.alarm()), (Some(1.0), None));
    }

    #[test]
    fn a_table_of_no_tier_is_measured_only() {
        let mut drift = Drift::new(None);
        for _ in 0..10 {
            assert!(!drift.observe(100, 100, &RULES));
        }
        assert_eq!(drift.measured(), Some(1.0));
    }
}

//! One file that a profile writes.

use crate::clocks::{BPMP_EMC, CPUFREQ, DEVFREQ};
use crate::fault::Fault;
use crate::sysfs::Sysfs;
use serde::{Deserialize, Serialize};

/// What a node is to its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Least frequency.
    Min,
    /// Most.
    Max,
    /// Governor.
    Governor,
    /// A value of its own: a fan's speed, a rate, a lock.
    Value,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "outcome")]
#[non_exhaustive]
pub enum Outcome {
    /// It is to be written.
    Planned,
    /// It reads back as wanted.
    Pinned,
    /// It does not.
    Refused {
        /// The kernel's words, or what is wrong.
        why: String,
        /// What it says instead.
        read_back: Option<String>,
    },
    /// It is not there.
    Absent,
}

/// One file, and what a profile wants of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The domain: the last part of its folder.
    pub domain: String,
    /// What it is to the domain.
    pub role: Role,
    /// The file.
    pub path: String,
    /// What it said, to the byte; None: it is not to be written.
    pub before: Option<String>,
    /// What it is to say; empty where that is not known.
    pub wanted: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Node {
    pub(super) fn planned(domain: &str, role: Role, path: String, before: String, wanted: String) -> Self {
        Self { domain: domain.to_owned(), role, path, before: Some(before), wanted, outcome: Outcome::Planned }
    }

    /// One that is not to be written, and why.
    pub(super) fn out(domain: &str, role: Role, path: String, fault: &Fault) -> Self {
        let outcome = match fault {
            Fault::Absent => Outcome::Absent,
            fault => Outcome::Refused { why: fault.to_string(), read_back: None },
        };
        Self { domain: domain.to_owned(), role, path, before: None, wanted: String::new(), outcome }
    }

    /// Whether it is a file that profiles write.
    pub(crate) fn may_be_written(&self) -> bool {
        let place = [DEVFREQ, CPUFREQ, BPMP_EMC, "/sys/class/hwmon"];
        let file = ["min_freq", "max_freq", "scaling_min_freq", "scaling_max_freq", "scaling_governor", "rate", "mrq_rate_locked", "pwm1"];
        let below = place.iter().find_map(|place| self.path.strip_prefix(place)?.strip_prefix('/'));
        below.is_some_and(|rest| {
            let mut parts = rest.split('/').rev();
            let known = parts.next().is_some_and(|last| file.contains(&last));
            known && parts.all(|part| !part.is_empty() && part != "." && part != "..")
        })
    }

    /// In a line, for a person.
    pub fn words(&self) -> String {
        let short = crate::sysfs::name(&self.path);
        match &self.outcome {
            Outcome::Planned => format!("{}/{short}: to be {}", self.domain, self.wanted),
            Outcome::Pinned => format!("{}/{short}: {}", self.domain, self.wanted),
            Outcome::Absent => format!("{}/{short}: absent", self.domain),
            Outcome::Refused { why, read_back: Some(says) } => format!("{}/{short}: refused: {why}; says {says}", self.domain),
            Outcome::Refused { why, read_back: None } => format!("{}/{short}: refused: {why}", self.domain),
        }
    }

    /// Writes it, and reads back.
    pub(super) fn pin(&mut self, sysfs: &dyn Sysfs) {
        let said = |sysfs: &dyn Sysfs| sysfs.read(&self.path).map(|text| shown(&text));
        if said(sysfs).is_ok_and(|now| now == self.wanted) {
            self.outcome = Outcome::Pinned;
            return;
        }
        let written = sysfs.write(&self.path, &self.wanted);
        let now = said(sysfs);
        self.outcome = match (written, now) {
            (Ok(()), Ok(now)) if now == self.wanted => Outcome::Pinned,
            (Ok(()), Ok(now)) => Outcome::Refused { why: "it was written and reads back otherwise".into(), read_back: Some(now) },
            (Ok(()), Err(fault)) => Outcome::Refused { why: format!("it was written and cannot be read back: {fault}"), read_back: None },
            (Err(fault), now) => Outcome::Refused { why: fault.to_string(), read_back: now.ok() },
        };
    }

    /// Looks again: writing one node may have moved another.
    pub(super) fn verify(&mut self, sysfs: &dyn Sysfs) {
        if self.outcome == Outcome::Pinned
            && let Ok(now) = sysfs.read(&self.path)
            && shown(&now) != self.wanted
        {
            let why = "it took the value and lost it to a later write".into();
            self.outcome = Outcome::Refused { why, read_back: Some(shown(&now)) };
        }
    }
}

/// A node's text as it is compared and shown.
pub(crate) fn shown(text: &str) -> String {
    text.trim().chars().take(crate::state::TEXT).collect()
}

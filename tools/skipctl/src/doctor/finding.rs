//! What a check can find. Problems and their remedies are constants beside the check that finds them, so that the page of them is made from these.

use serde::{Serialize, Serializer};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum State {
    /// There is nothing to look at on this machine.
    #[serde(rename = "not applicable")]
    NotApplicable,
    /// As it should be.
    #[serde(rename = "ok")]
    Ok,
    /// It serves, with less than it could have.
    #[serde(rename = "warning")]
    Warning,
    /// Something that was asked for does not work.
    #[serde(rename = "failure")]
    Failure,
}

impl State {
    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            State::NotApplicable => "not applicable",
            State::Ok => "ok",
            State::Warning => "warning",
            State::Failure => "failure",
        }
    }
}

/// Something that can be wrong, and what mends it.
#[derive(Debug, PartialEq)]
pub struct Problem {
    /// How bad it is.
    pub state: State,
    /// When it is found.
    pub when: &'static str,
    /// A command or a sentence; words in braces stand for what was seen.
    pub remedy: &'static str,
}

/// A problem that leaves something to be had.
pub const fn warning(when: &'static str, remedy: &'static str) -> Problem {
    Problem { state: State::Warning, when, remedy }
}

/// A problem that does not.
pub const fn failure(when: &'static str, remedy: &'static str) -> Problem {
    Problem { state: State::Failure, when, remedy }
}

/// One thing that is looked at.
#[derive(Debug, PartialEq)]
pub struct Check {
    /// Its name, for programs too.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// When it does not apply; None: it always does.
    pub unless: Option<&'static str>,
    /// All that it can find.
    pub problems: &'static [&'static Problem],
}

impl Check {
    /// As it should be.
    pub fn ok(&'static self, seen: impl Into<String>) -> Finding {
        self.found(State::Ok, None, seen)
    }

    /// Nothing to look at.
    pub fn inapplicable(&'static self, why: impl Into<String>) -> Finding {
        self.found(State::NotApplicable, None, why)
    }

    /// One of its problems.
    pub fn problem(&'static self, problem: &'static Problem, seen: impl Into<String>) -> Finding {
        self.found(problem.state, Some(problem), seen)
    }

    fn found(&'static self, state: State, problem: Option<&'static Problem>, seen: impl Into<String>) -> Finding {
        Finding { check: self, state, problem, seen: seen.into(), remedy: problem.map(|problem| problem.remedy.to_owned()) }
    }
}

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Where it comes from.
    #[serde(rename = "name", serialize_with = "name")]
    pub check: &'static Check,
    /// How it ended.
    pub state: State,
    /// Which of the check's problems it is.
    #[serde(serialize_with = "when")]
    pub problem: Option<&'static Problem>,
    /// What was seen.
    pub seen: String,
    /// What mends it; null where nothing has to be.
    pub remedy: Option<String>,
}

/// For programs a check is its name.
fn name<S: Serializer>(check: &&'static Check, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(check.name)
}

/// And a problem the sentence that tells it from the check's others.
fn when<S: Serializer>(problem: &Option<&'static Problem>, serializer: S) -> Result<S::Ok, S::Error> {
    problem.map(|problem| problem.when).serialize(serializer)
}

impl Finding {
    /// Puts a value in the place of `{key}` in the remedy.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.remedy = self.remedy.map(|remedy| remedy.replace(&format!("{{{key}}}"), value));
        self
    }

    /// A warning is a failure where the administrator asked for what it is about.
    pub fn raised(mut self, asked_for: bool) -> Self {
        if asked_for && self.state == State::Warning {
            self.state = State::Failure;
        }
        self
    }
}

/// That findings show each state and problem of a check, and no remedy lacks what was to be put in.
#[cfg(test)]
pub fn assert_covers(check: &'static Check, findings: &[Finding]) {
    for finding in findings {
        assert_eq!(finding.check, check);
        assert!(!finding.seen.is_empty(), "{finding:?}");
        assert!(finding.remedy.as_ref().is_none_or(|remedy| !remedy.contains(['{', '}'])), "{finding:?}");
    }
    for problem in check.problems {
        assert!(findings.iter().any(|found| found.problem == Some(problem)), "{}: nothing found {:?}", check.name, problem.when);
    }
    let has = |state| findings.iter().any(|found| found.problem.is_none() && found.state == state);
    assert!(has(State::Ok), "{}: nothing was ok", check.name);
    assert_eq!(has(State::NotApplicable), check.unless.is_some(), "{}: not applicable", check.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check { name: "thing", about: "a thing", unless: None, problems: &[&BROKEN] };
    const BROKEN: Problem = warning("it is broken", "mend {what}");

    #[test]
    fn a_remedy_names_what_was_seen() {
        static THING: Check = CHECK;
        static PROBLEM: Problem = BROKEN;
        let found = THING.problem(&PROBLEM, "in pieces").with("what", "the lid");
        assert_eq!((found.state, found.remedy.as_deref()), (State::Warning, Some("mend the lid")));
    }

    #[test]
    fn a_warning_is_a_failure_only_where_the_thing_was_asked_for() {
        static THING: Check = CHECK;
        static PROBLEM: Problem = BROKEN;
        assert_eq!(THING.problem(&PROBLEM, "x").raised(true).state, State::Failure);
        assert_eq!(THING.problem(&PROBLEM, "x").raised(false).state, State::Warning);
        assert_eq!(THING.ok("x").raised(true).state, State::Ok);
    }
}

//! What the checks found, as text and as JSON.

use super::finding::{Finding, State};
use crate::output::{columns, printable};
use serde::Serialize;
use serde::ser::SerializeStruct;

/// All findings.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many ended so.
    pub fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.state == state).count()
    }

    /// A line a finding, with its remedy below it where it has one; then how many are what.
    pub fn text(&self) -> String {
        let mark = |state| if state == State::NotApplicable { "–" } else { State::name(state) };
        let rows: Vec<Vec<String>> = self
            .findings
            .iter()
            .map(|found| vec![found.check.name.to_owned(), mark(found.state).to_owned(), printable(&found.seen)])
            .collect();
        let mut lines = String::new();
        for (line, finding) in columns(&rows).lines().zip(&self.findings) {
            lines.push_str(line);
            lines.push('\n');
            if let Some(remedy) = &finding.remedy {
                lines.push_str(&format!("    → {}\n", printable(remedy)));
            }
        }
        let (failures, warnings) = (self.count(State::Failure), self.count(State::Warning));
        lines
            + &format!(
                "{} looked at: {failures} failures, {warnings} warnings, {} not applicable\n",
                self.findings.len(),
                self.count(State::NotApplicable)
            )
    }
}

impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Report", 3)?;
        fields.serialize_field("failures", &self.count(State::Failure))?;
        fields.serialize_field("warnings", &self.count(State::Warning))?;
        fields.serialize_field("findings", &self.findings)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Check, Problem, failure};

    static CHECK: Check = Check { name: "lid", about: "the lid", unless: None, problems: &[&OPEN] };
    static OPEN: Problem = failure("it is open", "close {what}");

    #[test]
    fn a_remedy_stands_below_its_finding_and_drives_no_terminal() {
        let findings = vec![CHECK.ok("shut"), CHECK.problem(&OPEN, "wide\u{1b}[2J open").with("what", "it"), CHECK.inapplicable("no lid")];
        let report = Report { findings };
        insta::assert_snapshot!(report.text(), @r"
        lid  ok       shut
        lid  failure  wide[2J open
            → close it
        lid  –        no lid
        3 looked at: 1 failures, 0 warnings, 1 not applicable
        ");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["failures"], &json["findings"][1]["remedy"], &json["findings"][2]["state"]),
            (&1.into(), &"close it".into(), &"not applicable".into())
        );
        assert_eq!(json["findings"][0], serde_json::json!({"name": "lid", "state": "ok", "problem": null, "seen": "shut", "remedy": null}));
    }
}

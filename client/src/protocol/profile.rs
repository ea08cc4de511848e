//! Clock profiles on the wire: how the board's clocks stand, which profiles there are, and how to apply one.

use super::error::Error;
use super::fields::{Fields, object};
use serde::{Deserialize, Serialize};

/// How clocks stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ClockState {
    /// No profile is applied.
    #[default]
    Unpinned,
    /// The nodes say what the profile wrote.
    Pinned,
    /// They do, and the hardware does something else, or has done since the profile was applied.
    Throttled,
    /// They do not: somebody else changed them.
    Uncontrolled,
}

impl ClockState {
    /// All, in order.
    pub const ALL: [ClockState; 4] = [ClockState::Unpinned, ClockState::Pinned, ClockState::Throttled, ClockState::Uncontrolled];

    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            ClockState::Unpinned => "unpinned",
            ClockState::Pinned => "pinned",
            ClockState::Throttled => "throttled",
            ClockState::Uncontrolled => "uncontrolled",
        }
    }
}

impl std::fmt::Display for ClockState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The board's clocks as they were last looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// How they stand.
    pub state: ClockState,
    /// The profile that is applied; null where none is.
    #[serde(default)]
    pub profile: Option<String>,
    /// Why they are not pinned.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// What the profile wanted and did not get.
    #[serde(default)]
    pub refused: Vec<String>,
    /// Domains of which a node took its value.
    #[serde(default)]
    pub domains: Vec<String>,
    /// A GPU's is among them.
    #[serde(default)]
    pub pins_gpu: bool,
    /// How often they became throttled since the daemon started.
    #[serde(default)]
    pub throttles: u64,
    /// Background requests are held back, because something holds the clocks down now or did some seconds ago.
    #[serde(default)]
    pub background_held: bool,
}

/// `GET /skipd/v1/profile`, and what `apply` and `release` answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileShow {
    /// The board.
    pub board: BoardStatus,
    /// Its clocks, looked at for this answer.
    pub clocks: ClockStatus,
    /// All profiles, by name.
    pub profiles: Vec<ProfileInfo>,
}

/// What is known of the board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardStatus {
    /// `thor`, `orin`, `tegra` or `generic`.
    pub kind: String,
    /// As its firmware names it.
    #[serde(default)]
    pub model: Option<String>,
    /// Jetson Linux, as `38.2.0`.
    #[serde(default)]
    pub l4t: Option<String>,
    /// The power mode in force; null where nobody tells.
    #[serde(default)]
    pub mode: Option<String>,
}

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileInfo {
    /// Its name.
    pub name: String,
    /// What it is for; empty where it cannot be read.
    #[serde(default)]
    pub about: String,
    /// It is the administrator's, not one that comes with skipd.
    #[serde(default)]
    pub own: bool,
    /// Why it cannot be applied here: another board or power mode, or a mistake in it; null where it can.
    #[serde(default)]
    pub unfit: Option<String>,
}

/// `POST /skipd/v1/profile/apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyProfile {
    /// The profile.
    pub name: String,
}

impl ApplyProfile {
    /// Parses a body.
    ///
    /// # Errors
    /// It names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::new(object(body)?);
        let wanted = Self { name: fields.required("name")? };
        fields.end()?;
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_applies_a_profile_names_its_wrong_field() {
        assert_eq!(ApplyProfile::from_json(br#"{"name": "generic"}"#), Ok(ApplyProfile { name: "generic".into() }));
        for (body, param) in [(r#"{"name": 1}"#, "name"), ("{}", "name"), (r#"{"name": "a", "mode": "b"}"#, "mode")] {
            assert_eq!(ApplyProfile::from_json(body.as_bytes()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_state_has_one_word_everywhere() {
        for state in ClockState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }
}

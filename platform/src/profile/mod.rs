//! What a profile asks of a board, and where profiles come from: those built in, and the administrator's of the same or other names.

mod parse;
#[cfg(test)]
mod tests;

use crate::board::BoardKind;
use crate::fault::Fault;
use crate::sysfs::Sysfs;
use serde::Serialize;

/// The administrator's profiles, `NAME.toml`.
pub const ADMIN_PROFILES: &str = "/etc/skipd/profiles";
/// Longest name.
const MAX_NAME: usize = 64;
/// Most profiles of an administrator.
const MAX_PROFILES: usize = 64;

/// Those that come with skipd.
const SHIPPED: [(&str, &str); 6] = [
    ("generic", include_str!("../../profiles/generic.toml")),
    ("orin-maxn", include_str!("../../profiles/orin-maxn.toml")),
    ("thor-120w", include_str!("../../profiles/thor-120w.toml")),
    ("thor-70w", include_str!("../../profiles/thor-70w.toml")),
    ("thor-90w", include_str!("../../profiles/thor-90w.toml")),
    ("thor-maxn", include_str!("../../profiles/thor-maxn.toml")),
];

/// Why there is no such profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Neither built in nor the administrator's.
    #[error("there is no profile {0:?}: {1} are")]
    Unknown(String, String),
    /// It is no TOML of a profile.
    #[error("profile {name}: {reason}")]
    Malformed {
        /// Which.
        name: String,
        /// Line, key and reason.
        reason: String,
    },
    /// Its file cannot be read.
    #[error("profile {name}: {fault}")]
    Unreadable {
        /// Which.
        name: String,
        /// Why.
        fault: Fault,
    },
}

/// How fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// As fast as the node's own limit says, which is the power mode's.
    Max,
    /// The fastest step that is not above this, in the domain's unit.
    AtMost(u64),
}

/// What is wanted of one GPU domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuDomain {
    /// Names of its devfreq device; the first that is there is it.
    pub nodes: Vec<String>,
    /// Hz.
    pub target: Target,
}

/// What is wanted of the processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processors {
    /// A cpufreq governor; None leaves it.
    pub governor: Option<String>,
    /// kHz; None leaves it.
    pub min: Option<Target>,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it is for, in a line.
    pub about: String,
    /// The boards it is for; None: any.
    pub board: Option<BoardKind>,
    /// The power mode it expects, which it never sets; None: any.
    pub mode: Option<String>,
    /// GPU domains.
    pub gpu: Vec<GpuDomain>,
    /// Memory, Hz; None leaves it.
    pub emc: Option<Target>,
    /// Processors.
    pub cpu: Processors,
    /// Fan, 0 to 255; None leaves it.
    pub fan: Option<u8>,
    /// °C above which clocks are taken for throttled; None: each zone's own lowest trip point.
    pub tolerated: Option<f64>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Line, key and reason.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        parse::parse(name, text).map_err(|reason| ProfileError::Malformed { name: name.to_owned(), reason })
    }

    /// Whether a profile can be called so; its name is part of a file's and of a unit's.
    pub fn is_name(name: &str) -> bool {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        (1..=MAX_NAME).contains(&name.len()) && plain && !name.starts_with('-')
    }
}

/// All profiles of a board.
pub struct Profiles<'a> {
    sysfs: &'a dyn Sysfs,
}

impl<'a> Profiles<'a> {
    /// Those built in, and those under [`ADMIN_PROFILES`].
    pub fn new(sysfs: &'a dyn Sysfs) -> Self {
        Self { sysfs }
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<String> {
        let files = self.sysfs.list(ADMIN_PROFILES).unwrap_or_default();
        let own = files.iter().filter_map(|file| file.strip_suffix(".toml")).filter(|name| Profile::is_name(name)).take(MAX_PROFILES);
        let mut names: Vec<String> = own.chain(SHIPPED.map(|(name, _)| name)).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Whether it is the administrator's.
    pub fn is_own(&self, name: &str) -> bool {
        Profile::is_name(name) && self.sysfs.exists(&format!("{ADMIN_PROFILES}/{name}.toml"))
    }

    /// One of them; the administrator's wins.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(&self, name: &str) -> Result<Profile, ProfileError> {
        let unknown = || ProfileError::Unknown(name.chars().take(MAX_NAME).collect(), self.names().join(", "));
        if !Profile::is_name(name) {
            return Err(unknown());
        }
        match self.sysfs.read(&format!("{ADMIN_PROFILES}/{name}.toml")) {
            Ok(text) => Profile::parse(name, &text),
            Err(Fault::Absent) => {
                let (_, text) = SHIPPED.iter().find(|(shipped, _)| *shipped == name).ok_or_else(unknown)?;
                Profile::parse(name, text)
            }
            Err(fault) => Err(ProfileError::Unreadable { name: name.to_owned(), fault }),
        }
    }
}

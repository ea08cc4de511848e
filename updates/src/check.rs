//! The checks that an update has to pass, each with a name that programs may rely on.

use std::fmt;
use std::io;

/// What an update failed, or what kept it from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// No archive, or one that holds other things than files and folders.
    Archive,
    /// A name in the archive that leads somewhere else, or is no name of a bundle's file.
    Path,
    /// More bytes or files than a bundle may have.
    TooLarge,
    /// A file that the metadata names is not there.
    Missing,
    /// Not signed by the keys that are trusted here.
    Signature,
    /// Metadata of different bundles, each signed, put together.
    MixAndMatch,
    /// A file is not the one that was signed.
    Hash,
    /// Signed for a time that is over.
    Expired,
    /// The clock shows an earlier time than is known to have passed, so that nobody can tell what is expired.
    Clock,
    /// No newer than what was committed here before.
    Replay,
    /// Metadata, manifest or tables are not of the form they should have.
    Schema,
    /// For another checkpoint than the one installed.
    Checkpoint,
    /// The tables would not be used here: refused by the checks every table is put to.
    Table,
    /// There is no root of trust here, or it cannot be read.
    Trust,
    /// No room on the disk.
    NoSpace,
    /// The store lies on a file system that cannot be written to.
    ReadOnly,
    /// The store may not be written to by this user.
    Permission,
    /// Another update is being taken.
    Busy,
    /// The trial, slot or earlier table that was asked for is not there.
    NothingThere,
    /// The disk failed otherwise.
    Io,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 20] = [
        Check::Archive,
        Check::Path,
        Check::TooLarge,
        Check::Missing,
        Check::Signature,
        Check::MixAndMatch,
        Check::Hash,
        Check::Expired,
        Check::Clock,
        Check::Replay,
        Check::Schema,
        Check::Checkpoint,
        Check::Table,
        Check::Trust,
        Check::NoSpace,
        Check::ReadOnly,
        Check::Permission,
        Check::Busy,
        Check::NothingThere,
        Check::Io,
    ];

    /// Its stable name.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The exit status of `skip-update` for it.
    pub fn exit_code(self) -> u8 {
        self.row().1
    }

    /// The check of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }

    fn row(self) -> (&'static str, u8) {
        match self {
            Self::Archive => ("archive", 10),
            Self::Path => ("path", 11),
            Self::TooLarge => ("too_large", 12),
            Self::Missing => ("missing", 13),
            Self::Signature => ("signature", 14),
            Self::MixAndMatch => ("mix_and_match", 15),
            Self::Hash => ("hash", 16),
            Self::Expired => ("expired", 17),
            Self::Clock => ("clock", 18),
            Self::Replay => ("replay", 19),
            Self::Schema => ("schema", 20),
            Self::Checkpoint => ("checkpoint", 21),
            Self::Table => ("table", 22),
            Self::Trust => ("trust", 23),
            Self::NoSpace => ("no_space", 30),
            Self::ReadOnly => ("read_only", 31),
            Self::Permission => ("permission", 32),
            Self::Busy => ("busy", 33),
            Self::NothingThere => ("nothing_there", 34),
            Self::Io => ("io", 35),
        }
    }

    /// The check that an error of the file system stands for.
    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::PermissionDenied => Self::Permission,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An update that is not taken: the check it failed, and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {message}")]
pub struct Rejection {
    /// The check.
    pub check: Check,
    /// What was found, for people.
    pub message: String,
}

impl Rejection {
    /// A rejection.
    pub fn new(check: Check, message: impl Into<String>) -> Self {
        Self { check, message: message.into() }
    }

    /// What the file system gave, with what was tried.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Check::of_io(error), format!("{what}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_check_has_a_name_and_an_exit_code_of_its_own() {
        let names: BTreeSet<_> = Check::ALL.iter().map(|c| c.name()).collect();
        let codes: BTreeSet<_> = Check::ALL.iter().map(|c| c.exit_code()).collect();
        assert_eq!((names.len(), codes.len()), (Check::ALL.len(), Check::ALL.len()));
        for check in Check::ALL {
            assert_eq!(Check::from_name(check.name()), Some(check));
        }
        // 0 is success, 1 a failure of the program, 2 wrong usage.
        assert!(codes.iter().all(|&code| code > 2));
    }
}

//! The publisher's keys, one for each role of The Update Framework.

use super::MakeError;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use std::error::Error;
use std::fmt;
use tough::async_trait;
use tough::key_source::KeySource;
use tough::schema::RoleType;
use tough::sign::{Sign, parse_keypair};

/// The roles, in the order of [`Keys::all`].
pub const ROLES: [RoleType; 4] = [RoleType::Root, RoleType::Targets, RoleType::Snapshot, RoleType::Timestamp];

/// An Ed25519 key in PKCS #8 form, as `openssl genpkey -algorithm ed25519 -outform DER` writes one too.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub Vec<u8>);

/// A key for each role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Signs roots; kept where nothing else is.
    pub root: Key,
    /// Signs which files belong to a version.
    pub targets: Key,
    /// Signs which metadata belongs together.
    pub snapshot: Key,
    /// Signs which snapshot is the newest.
    pub timestamp: Key,
}

impl Keys {
    /// New ones.
    ///
    /// # Errors
    /// [`MakeError::Key`] where the system has no random numbers.
    pub fn generate() -> Result<Self, MakeError> {
        Ok(Self { root: Key::generate()?, targets: Key::generate()?, snapshot: Key::generate()?, timestamp: Key::generate()? })
    }

    /// All of them.
    pub fn all(&self) -> [&Key; 4] {
        [&self.root, &self.targets, &self.snapshot, &self.timestamp]
    }

    pub(super) fn sources(&self) -> Vec<Box<dyn KeySource>> {
        self.all().into_iter().map(|key| Box::new(key.clone()) as Box<dyn KeySource>).collect()
    }
}

impl Key {
    fn generate() -> Result<Self, MakeError> {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| MakeError::Key("no random numbers".into()))?;
        Ok(Self(pair.as_ref().to_vec()))
    }

    pub(super) async fn public(&self) -> Result<tough::schema::key::Key, MakeError> {
        Ok(self.as_sign().await.map_err(|e| MakeError::Key(e.to_string()))?.tuf_key())
    }
}

// A key is not for logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[async_trait]
impl KeySource for Key {
    async fn as_sign(&self) -> Result<Box<dyn Sign>, Box<dyn Error + Send + Sync + 'static>> {
        Ok(Box::new(parse_keypair(&self.0)?))
    }

    async fn write(&self, _value: &str, _key_id_hex: &str) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        Err("keys are not written through here".into())
    }
}

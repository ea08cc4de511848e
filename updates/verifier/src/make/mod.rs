//! The publisher's side: keys, signed roots that hand trust on from one to the next, and bundles.

mod keys;
mod tar;

pub use keys::{Key, Keys, ROLES};
pub use tar::pack;

use aws_lc_rs::rand::SystemRandom;
use jiff::Timestamp as Time;
use serde::Serialize;
use skip_tables::Digest;
use skip_updates::{Entry, FORMAT, Files, Limits, Manifest, Rejection};
use std::collections::HashMap;
use std::num::NonZeroU64;
use tough::TargetName;
use tough::editor::signed::SignedRole;
use tough::key_source::KeySource;
use tough::schema::{Hashes, KeyHolder, Metafile, Role, RoleKeys, Root, Signed, Snapshot, Target, Targets, Timestamp};

const SPEC: &str = "1.0.0";

/// Why a bundle is not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// Keys or signing.
    #[error("signing: {0}")]
    Tuf(Box<tough::error::Error>),
    /// A key that is none.
    #[error("key: {0}")]
    Key(String),
    /// A root that cannot be read.
    #[error("root: {0}")]
    Root(#[from] serde_json::Error),
    /// A version of 0, or a time that does not exist.
    #[error("{0}")]
    Number(&'static str),
    /// A file that may not be in a bundle.
    #[error(transparent)]
    File(#[from] Rejection),
}

impl From<tough::error::Error> for MakeError {
    fn from(error: tough::error::Error) -> Self {
        Self::Tuf(Box::new(error))
    }
}

/// Who publishes: keys, and the roots so far, the newest last.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// The keys that the newest root names.
    pub keys: Keys,
    /// Root metadata of every version, from 1 on.
    pub roots: Vec<Vec<u8>>,
}

/// What a bundle holds.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Version, above the ones before.
    pub version: u64,
    /// When it is made, in seconds since 1970.
    pub created: u64,
    /// When its metadata expires.
    pub expires: u64,
    /// For people.
    pub note: String,
    /// Tables.
    pub tables: Vec<Tables>,
}

/// Tables of a checkpoint.
#[derive(Clone, Debug)]
pub struct Tables {
    /// SHA-256 over its weights.
    pub checkpoint: Digest,
    /// Its name.
    pub name: String,
    /// The file's name in the bundle.
    pub file: String,
    /// The file.
    pub bytes: Vec<u8>,
}

impl Publisher {
    /// New keys, and the first root, which they sign.
    ///
    /// # Errors
    /// [`MakeError`].
    pub async fn new(expires: u64) -> Result<Self, MakeError> {
        let keys = Keys::generate()?;
        let root = sign_root(&keys, 1, expires, None).await?;
        Ok(Self { keys, roots: vec![root] })
    }

    /// Other keys for every role: the new root is signed by the old root's key and by the new one's, so that devices hand on their trust.
    ///
    /// # Errors
    /// [`MakeError`].
    pub async fn rotate(&mut self, expires: u64) -> Result<(), MakeError> {
        let keys = Keys::generate()?;
        let root = sign_root(&keys, self.roots.len() as u64 + 1, expires, Some(self)).await?;
        self.roots.push(root);
        self.keys = keys;
        Ok(())
    }

    /// The newest root.
    pub fn root(&self) -> &[u8] {
        self.roots.last().map_or(&[], Vec::as_slice)
    }

    /// Signs a bundle.
    ///
    /// # Errors
    /// [`MakeError`].
    pub async fn sign(&self, contents: &Contents) -> Result<Files, MakeError> {
        let entry =
            |t: &Tables| Entry { checkpoint: t.checkpoint, name: t.name.clone(), file: t.file.clone(), sha256: Digest::of(&t.bytes) };
        let manifest = Manifest {
            format: FORMAT,
            version: contents.version,
            created: contents.created,
            note: contents.note.clone(),
            tables: contents.tables.iter().map(entry).collect(),
        };
        let mut manifest = serde_json::to_vec_pretty(&manifest)?;
        manifest.push(b'\n');
        // What a device would refuse is not signed.
        Manifest::parse(&manifest)?;
        let mut targets = vec![("manifest.json".to_owned(), manifest)];
        targets.extend(contents.tables.iter().map(|t| (t.file.clone(), t.bytes.clone())));
        self.sign_targets(contents.version, contents.expires, targets).await
    }

    /// Signs any targets as a bundle of a version; what [`Self::sign`] would not make, tests do by this.
    ///
    /// # Errors
    /// [`MakeError`].
    pub async fn sign_targets(&self, version: u64, expires: u64, files: Vec<(String, Vec<u8>)>) -> Result<Files, MakeError> {
        let (version, expires) = (number(version)?, time(expires)?);
        let root: Signed<Root> = serde_json::from_slice(self.root())?;
        let holder = KeyHolder::Root(root.signed);
        let keys = self.keys.sources();
        let mut targets = Targets::new(SPEC.into(), version, expires);
        let mut bundle = Files::default();
        let limits = Limits::default();
        for (name, bytes) in files {
            let hash = Digest::of(&bytes);
            let target = Target { length: bytes.len() as u64, hashes: hashes(&bytes), custom: HashMap::new(), _extra: HashMap::new() };
            targets.targets.insert(TargetName::new(&name)?, target);
            bundle.add(&format!("targets/{hash}.{name}"), bytes, &limits)?;
        }
        let targets = signed(targets, &holder, &keys).await?;
        let mut snapshot = Snapshot::new(SPEC.into(), version, expires);
        snapshot.meta.insert("targets.json".into(), metafile(version, &targets));
        let snapshot = signed(snapshot, &holder, &keys).await?;
        let mut timestamp = Timestamp::new(SPEC.into(), version, expires);
        timestamp.meta.insert("snapshot.json".into(), metafile(version, &snapshot));
        let timestamp = signed(timestamp, &holder, &keys).await?;
        for (index, root) in self.roots.iter().enumerate() {
            bundle.add(&format!("metadata/{}.root.json", index + 1), root.clone(), &limits)?;
        }
        bundle.add("metadata/timestamp.json", timestamp, &limits)?;
        bundle.add(&format!("metadata/{version}.snapshot.json"), snapshot, &limits)?;
        bundle.add(&format!("metadata/{version}.targets.json"), targets, &limits)?;
        Ok(bundle)
    }
}

async fn sign_root(keys: &Keys, version: u64, expires: u64, before: Option<&Publisher>) -> Result<Vec<u8>, MakeError> {
    let mut root = Root {
        spec_version: SPEC.into(),
        consistent_snapshot: true,
        version: number(version)?,
        expires: time(expires)?,
        keys: HashMap::new(),
        roles: HashMap::new(),
        _extra: HashMap::new(),
    };
    for (role, key) in ROLES.iter().zip(keys.all()) {
        let public = key.public().await?;
        let id = public.key_id().map_err(|e| MakeError::Key(e.to_string()))?;
        root.keys.insert(id.clone(), public);
        root.roles.insert(*role, RoleKeys { keyids: vec![id], threshold: NonZeroU64::MIN, _extra: HashMap::new() });
    }
    let rng = SystemRandom::new();
    let new = SignedRole::new(root.clone(), &KeyHolder::Root(root.clone()), &keys.sources(), &rng).await?;
    let Some(before) = before else { return Ok(new.buffer().clone()) };
    let old: Signed<Root> = serde_json::from_slice(before.root())?;
    let by_old = SignedRole::new(root, &KeyHolder::Root(old.signed), &before.keys.sources(), &rng).await?;
    let both = new.add_old_signatures(by_old.signed().signatures.clone())?;
    Ok(both.buffer().clone())
}

async fn signed<R: Role + Serialize>(role: R, holder: &KeyHolder, keys: &[Box<dyn KeySource>]) -> Result<Vec<u8>, MakeError> {
    Ok(SignedRole::new(role, holder, keys, &SystemRandom::new()).await?.buffer().clone())
}

fn hashes(bytes: &[u8]) -> Hashes {
    Hashes { sha256: aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec().into(), _extra: HashMap::new() }
}

fn metafile(version: NonZeroU64, bytes: &[u8]) -> Metafile {
    Metafile { length: Some(bytes.len() as u64), hashes: Some(hashes(bytes)), version, _extra: HashMap::new() }
}

fn number(version: u64) -> Result<NonZeroU64, MakeError> {
    NonZeroU64::new(version).ok_or(MakeError::Number("version 0: versions begin at 1"))
}

fn time(seconds: u64) -> Result<Time, MakeError> {
    i64::try_from(seconds).ok().and_then(|s| Time::from_second(s).ok()).ok_or(MakeError::Number("a time beyond the calendar"))
}

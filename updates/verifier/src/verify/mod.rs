//! From a bundle's files to an update that may be put into the store: signatures, age, version, checkpoint, tables, in this order.

mod tables;
mod tuf;

use crate::clock::{Clock, shown};
use skip_tables::Digest;
use skip_updates::{Admitted, Check, Files, Manifest, Rejection};

/// What a bundle is held against.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// The trusted root's metadata.
    pub root: Vec<u8>,
    /// Metadata last committed: timestamp and snapshot.
    pub known: [Option<Vec<u8>>; 2],
    /// The highest version ever committed.
    pub floor: u64,
    /// The installed checkpoint's weights.
    pub checkpoint: Digest,
    /// The time.
    pub clock: Clock,
}

impl Verifier {
    /// Verifies a bundle.
    ///
    /// # Errors
    /// The first check that fails.
    pub async fn verify(&self, files: Files) -> Result<Admitted, Rejection> {
        let verified = tuf::load(files, &self.root, &self.known).await?;
        let bytes = verified.target("manifest.json").await?;
        let manifest = Manifest::parse(&bytes)?;
        if manifest.version != verified.version() {
            let message = format!("the manifest says version {}, the metadata that signs it {}", manifest.version, verified.version());
            return Err(Rejection::new(Check::Schema, message));
        }
        if manifest.version <= self.floor {
            let message = format!("version {} is not above {}, which was committed here", manifest.version, self.floor);
            return Err(Rejection::new(Check::Replay, message));
        }
        let now = self.clock.judge(manifest.created)?;
        if let Some((role, expires)) = verified.expired(now) {
            return Err(Rejection::new(
                Check::Expired,
                format!("the {role} metadata was good until {}; it is {}", shown(expires), shown(now)),
            ));
        }
        let entry = manifest.entry(self.checkpoint)?;
        let tables = verified.target(&entry.file).await?;
        if Digest::of(&tables) != entry.sha256 {
            return Err(Rejection::new(Check::Hash, format!("{} is not what the manifest names", entry.file)));
        }
        tables::check(&tables, entry)?;
        let (metadata, root) = verified.into_metadata()?;
        Ok(Admitted { manifest: bytes, tables, checkpoint: self.checkpoint, metadata, root })
    }
}

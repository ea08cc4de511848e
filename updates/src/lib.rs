//! Updates of tables over the air, as far as they need no cryptography: reading a bundle within limits, its manifest, the store of slots that a power cut
//! cannot break, and the state machine of a trial. Signatures are the business of `skip-update`, a program of its own; the daemon reads the store and
//! has that program change it.

mod bundle;
mod check;
mod disk;
mod manifest;
mod state;
mod store;

pub use bundle::{Files, Limits, read_archive, read_folder};
pub use check::{Check, Rejection};
pub use disk::{Disk, RealDisk};
pub use manifest::{Entry, FORMAT, MAX_MANIFEST_BYTES, Manifest, SlotName, SlotNameError};
pub use state::{Begun, State, TRIES};
#[doc(hidden)]
pub use store::fuzz_small_files;
pub use store::{Admitted, METADATA, Slot, Store, StoreError, View};

/// No honest clock shows less: the day this line was written, in seconds since 1970 (1 November 2026).
pub const BUILT_AFTER: u64 = 1_793_491_200;

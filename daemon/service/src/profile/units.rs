//! Who writes clocks: it takes root, which the daemon is not.

use futures_util::future::BoxFuture;
use skip_client::Error;

/// Starts and ends what pins clocks.
pub trait Units: Send + Sync {
    /// Pins the clocks of a profile, in the place of any other. Ends when they are written, in whole or in part.
    fn pin<'a>(&'a self, profile: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// Puts back what was there before; `applied` is the profile that the board's snapshot is of.
    fn release<'a>(&'a self, applied: Option<&'a str>) -> BoxFuture<'a, Result<(), Error>>;
}

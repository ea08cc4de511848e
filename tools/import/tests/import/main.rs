//! Imports of small GGUF files made on the spot: what comes out, and that nothing comes out of broken ones.
#![expect(clippy::unwrap_used, reason = "tests")]

mod broken;
mod families;
mod model;
mod whole;

//! The arithmetic of calibration texts and of `evaluate`: items in, prompts out; answers in, scores and a verdict out.
//!
//! Nothing here runs a model. Everything is determined by its files and its seed, and what is read from outside is bounded. `docs/evaluate.md`
//! lists the formats, the rules and where they come from.

pub mod calibration;
pub mod corpus;
mod error;
mod fit;
mod framing;
pub mod items;
pub mod metric;
pub mod results;
pub mod ruler;
mod seed;
pub mod side;
pub mod statistics;
#[cfg(test)]
mod testing;

pub use error::PromptError;
pub use framing::Framing;
pub use items::Item;

//! TensorRT Edge-LLM's batch files: requests read from its input.json, answers written as its output.json.
//! What its format says and skipd does not do is refused by name, in the place of the request or, where it holds for all, for the file.

mod input;
mod output;
mod profile;

pub use input::{Batch, Overrides, Prompt, Request};
pub use output::{document, response};
pub use profile::{Profile, text as profile_text};

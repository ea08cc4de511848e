//! Command-line options as the protocol's.

use crate::cli::{Options, PhaseArg, Priority};
use crate::failure::Failure;
use skip_client::protocol::{self, GenerationOptions, Phase, RequestTables, Selector, SkipdOptions, Stop, StructuredOutputs};
use skip_tables::{Document, Tier};
use std::path::Path;

impl From<PhaseArg> for Phase {
    fn from(phase: PhaseArg) -> Self {
        match phase {
            PhaseArg::Prefill => Phase::Prefill,
            PhaseArg::Decode => Phase::Decode,
        }
    }
}

impl From<Priority> for protocol::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Background => protocol::Priority::Background,
            Priority::Interactive => protocol::Priority::Interactive,
            Priority::Control => protocol::Priority::Control,
        }
    }
}

/// The request's options; `json` is how the answer will be printed.
pub fn generation(options: &Options, json: bool) -> Result<GenerationOptions, Failure> {
    // Not left to clap, which does not see an option of every command that stands before the command.
    if options.logprobs.is_some() && !json {
        return Err(Failure::Usage("--logprobs needs --json".into()));
    }
    let table = |text: &Option<String>| text.as_deref().map(selector).transpose();
    let tables = RequestTables { prefill: table(&options.prefill_table)?, decode: table(&options.decode_table)? };
    let own = SkipdOptions {
        priority: options.priority.map(Into::into),
        deadline_ms: options.deadline.map(protocol::milliseconds),
        prefix_reuse: options.no_prefix_reuse.then_some(false),
        tables: (tables != RequestTables::default()).then_some(tables),
    };
    let schema = options.schema.as_deref().map(schema).transpose()?;
    let form = schema.map(StructuredOutputs::Json).or_else(|| options.regex.clone().map(StructuredOutputs::Regex));
    Ok(GenerationOptions {
        structured_outputs: form,
        max_tokens: options.max_tokens,
        temperature: options.temperature,
        top_p: options.top_p,
        top_k: options.top_k,
        min_p: options.min_p,
        seed: options.seed,
        stop: (!options.stop.is_empty()).then(|| Stop(options.stop.clone())),
        logprobs: options.logprobs,
        ignore_eos: options.ignore_eos,
        skipd: (own != SkipdOptions::default()).then_some(own),
        ..GenerationOptions::new()
    })
}

/// A schema from a file; what it says is the daemon's to judge.
fn schema(path: &Path) -> Result<serde_json::Value, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::Io(path.display().to_string(), error))?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// A tier, `none`, JSON text, or a table file, which is read and checked here and sent as JSON. Other words go to the daemon, which refuses them by name.
pub fn selector(text: &str) -> Result<Selector, Failure> {
    let parsed: Selector = text.parse()?;
    let Selector::Tier(word) = &parsed else { return Ok(parsed) };
    let path = Path::new(word);
    let looks_like_a_file = path.is_file() || word.contains('/') || word.ends_with(".json");
    if word.parse::<Tier>().is_ok() || !looks_like_a_file {
        return Ok(parsed);
    }
    let bytes = std::fs::read(path).map_err(|error| Failure::Io(word.clone(), error))?;
    Document::parse(&bytes).map_err(|error| Failure::Table(format!("{word}: {error}")))?;
    skip_tables::parse_json(&bytes).map(Selector::Table).map_err(|error| Failure::Table(format!("{word}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_a_tier_before_it_is_a_file() {
        assert_eq!(selector("50%").unwrap(), Selector::Tier("50%".into()));
        assert_eq!(selector("0.5").unwrap(), Selector::Tier("0.5".into()));
        assert_eq!(selector("none").unwrap(), Selector::None);
        assert_eq!(selector("bogus").unwrap(), Selector::Tier("bogus".into()));
        assert!(matches!(selector("[[256, 3.5]]").unwrap(), Selector::Table(_)));
        assert!(matches!(selector("missing.json").unwrap_err(), Failure::Io(..)));
    }

    #[test]
    fn a_table_file_is_checked_before_it_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        std::fs::write(&path, "[[256, 3.5], [128, 4]]").unwrap();
        let failure = selector(path.to_str().unwrap()).unwrap_err();
        assert!(failure.to_string().contains("128"), "{failure}");
        std::fs::write(&path, "[[128, 3.5], [256, 4]]").unwrap();
        assert!(matches!(selector(path.to_str().unwrap()), Ok(Selector::Table(_))));
    }
}

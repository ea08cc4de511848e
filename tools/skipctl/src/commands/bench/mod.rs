//! `bench`: how fast the running daemon is, dense and under a table in turn, with what it skipped and what the clocks did meanwhile.

pub mod clocks;
mod measure;
mod pin;
mod report;

use super::{Context, options};
use crate::cli::Bench;
use crate::failure::Failure;
use crate::output;
use clocks::Clocks;
use measure::{Mode, Plan};
use pin::Pin;
use report::Report;
use skip_client::protocol::{Phase, Selector, State, Tier};
use skip_client::{Client, Error, ErrorKind};
use std::time::Duration;

/// What prompts are taken from unless a file is given: this project's documentation.
const TEXT: [&str; 7] = [
    include_str!("../../../../../README.md"),
    include_str!("../../../../../docs/interfaces.md"),
    include_str!("../../../../../docs/running.md"),
    include_str!("../../../../../docs/tables.md"),
    include_str!("../../../../../docs/kernels.md"),
    include_str!("../../../../../docs/testing.md"),
    include_str!("../../../../../docs/measurements.md"),
];

/// How long a loading daemon is waited for.
const READY: Duration = Duration::from_secs(120);

pub async fn run(context: &Context, args: Bench) -> Result<(), Failure> {
    let pin = Pin::default();
    let outcome = tokio::select! {
        outcome = measured(context, args, &pin) => outcome,
        () = pin::told_to_end() => Err(Failure::Interrupted),
    };
    match (pin.release().await, outcome) {
        (Err(failure), Err(first)) => {
            output::note(&format!("the clocks are not put back: {failure}"));
            Err(first)
        }
        (released, outcome) => outcome.and(released),
    }
}

async fn measured(context: &Context, args: Bench, pin: &Pin) -> Result<(), Failure> {
    let client = context.connect().await?;
    client.wait_ready(READY).await?;
    let status = client.status().await?;
    if status.state != State::Ready {
        return Err(Error::new(ErrorKind::NotReady, format!("the daemon is {}", status.state)).into());
    }
    let text = match &args.text {
        Some(path) => std::fs::read_to_string(path).map_err(|error| Failure::Io(path.display().to_string(), error))?,
        None => TEXT.concat(),
    };
    let text = client.tokenize(text).await?;
    if text.is_empty() {
        return Err(Failure::Usage("the text is empty".into()));
    }
    let modes = modes(&client, &args).await?;
    let gpu = status.backend.as_ref().is_some_and(|backend| backend.name == "cuda");
    let context_length = status.model.as_ref().map_or(0, |model| model.context_length);
    let mut warnings = Vec::new();
    let fits = |prompt: &u32| prompt.saturating_add(args.tokens) <= context_length;
    let prompts: Vec<u32> = args.prompts.iter().copied().filter(fits).collect();
    for prompt in args.prompts.iter().filter(|prompt| !fits(prompt)) {
        warnings.push(format!("a prompt of {prompt} tokens does not fit the context of {context_length}: left out"));
    }
    if prompts.is_empty() {
        return Err(Failure::Usage(format!("no prompt fits the context of {context_length}")));
    }
    if let Some(longest) = prompts.iter().max().filter(|&&longest| longest as usize > text.len()) {
        warnings.push(format!(
            "the text has {} tokens and is repeated for prompts of {longest}: repetition skips more than other text",
            text.len()
        ));
    }
    if modes.len() == 1 {
        warnings.push("no table is in force, given or in a ladder: dense alone".to_owned());
    }
    if status.queue.running + status.queue.waiting > 0 {
        warnings.push(format!("{} other requests are running: times include theirs", status.queue.running + status.queue.waiting));
    }
    if let Some(profile) = &args.profile {
        pin.take(&client, profile).await?;
    }
    let before = Clocks::read(&client, gpu).await;
    let counters = measure::Counters::read(&client).await;
    let plan =
        Plan { prompts: &prompts, tokens: args.tokens, rounds: args.rounds, concurrency: &args.concurrency, text: &text, modes: &modes };
    let runs = plan
        .run(&client, |line| {
            if !context.json {
                output::note(line)
            }
        })
        .await?;
    let attention_share = counters.zip(measure::Counters::read(&client).await).and_then(|(a, b)| a.attention_share(&b));
    let after = Clocks::read(&client, gpu).await;
    warnings.extend(after.warnings(&before));
    let report = Report::new(&status, &args, runs, attention_share, [before, after], warnings);
    context.show(&report, Report::text)
}

/// Dense, and the tables to set beside it: those given, else those in force, else the ladder's tier nearest to a half.
async fn modes(client: &Client, args: &Bench) -> Result<Vec<Mode>, Failure> {
    let dense = Mode { name: "dense", prefill: Some(Selector::None), decode: Some(Selector::None) };
    let given = |text: &Option<String>| text.as_deref().map(options::selector).transpose();
    let (prefill, decode) = (given(&args.prefill_table)?, given(&args.decode_table)?);
    if prefill.is_some() || decode.is_some() {
        let other = |selector: Option<Selector>| Some(selector.unwrap_or(Selector::None));
        return Ok(vec![dense, Mode { name: "skip", prefill: other(prefill), decode: other(decode) }]);
    }
    let in_force = client.tables().await?;
    if [Phase::Prefill, Phase::Decode].iter().any(|&phase| in_force.phase(phase).rows.is_some()) {
        return Ok(vec![dense, Mode { name: "skip", prefill: None, decode: None }]);
    }
    let tiers = client.tiers().await?;
    let near_half = |tiers: &[Tier]| {
        let share = |tier: &Tier| tier.name.trim_end_matches('%').parse::<f64>().map_or(f64::MAX, |percent| (percent - 50.0).abs());
        let best = tiers.iter().filter(|tier| tier.reached).min_by(|a, b| share(a).total_cmp(&share(b)));
        Some(best.map_or(Selector::None, |tier| Selector::Tier(tier.name.clone())))
    };
    let skip = Mode { name: "skip", prefill: near_half(&tiers.prefill), decode: near_half(&tiers.decode) };
    let skips = skip.prefill != dense.prefill || skip.decode != dense.decode;
    Ok(if skips { vec![dense, skip] } else { vec![dense] })
}

//! `price`: has the daemon time and score every tier, and keeps what it found as price.json.

use super::bench::clocks::Clocks;
use super::evaluate::absolute;
use super::{Context, job};
use crate::cli;
use crate::failure::Failure;
use crate::format::{percent, times};
use crate::output::{self, columns};
use crate::saved::Saved;
use serde_json::Value;
use skip_client::protocol::{Price, PriceOptions, PriceSpeed};

pub async fn run(context: &Context, args: cli::Price) -> Result<(), Failure> {
    let options = PriceOptions {
        lengths: args.lengths,
        accuracy_lengths: args.accuracy_lengths,
        accuracy_samples: args.accuracy_samples,
        rounds: args.rounds,
        decode_tokens: args.decode_tokens,
        corpus: args.corpus.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?,
        seed: args.seed,
        label: args.label,
        write: !args.no_write,
    };
    let Value::Object(options) = serde_json::to_value(options).unwrap_or_default() else {
        return Err(Failure::Usage("the options are no object".into()));
    };
    // Before hours of measuring, not behind them.
    std::fs::create_dir_all(&args.work_dir).map_err(|error| Failure::Io(args.work_dir.display().to_string(), error))?;
    let file = Saved::at(args.work_dir.join("price.json"))?;
    let client = context.connect().await?;
    let gpu = client.status().await?.backend.is_some_and(|backend| backend.name == "cuda");
    let before = Clocks::read(&client, gpu).await;
    let mut found: Price = job::finish(&client, "price", options).await?;
    let clocks = Clocks::read(&client, gpu).await.warnings(&before).join("; ");
    found.clocks = [clocks, found.clocks].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
    if !found.clocks.is_empty() {
        output::note(&found.clocks);
    }
    let saved = file.write(&serde_json::to_string_pretty(&found).unwrap_or_default());
    let path = file.path().display();
    context.show(&found, |found| match &saved {
        Ok(()) => format!("{}written to {path}: skipctl report --price-json {path} --out price.html", text(found)),
        Err(_) => text(found),
    })?;
    saved
}

/// What was found, to be read.
pub fn text(found: &Price) -> String {
    let heads = ["tokens", "tier", "TTFT ms", "dense / tier", "TPOT ms", "dense / tier", "attention ms", "skipped"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for speed in &found.speed {
        let dense = found.speed.iter().find(|dense| dense.length == speed.length && dense.tier == "dense");
        let than_dense = |of: fn(&PriceSpeed) -> Option<f64>| times(dense.and_then(of), of(speed));
        let ms = |time: Option<f64>, digits: usize| time.map_or("–".into(), |ms| format!("{ms:.digits$}"));
        rows.push(vec![
            speed.length.to_string(),
            speed.tier.clone(),
            ms(speed.ttft_ms, 2),
            than_dense(|s| s.ttft_ms),
            ms(speed.tpot_ms, 3),
            than_dense(|s| s.tpot_ms),
            ms(speed.attention_ms, 2),
            format!("{}, {}", percent(speed.prefill_skipped), percent(speed.decode_skipped)),
        ]);
    }
    let mut out = columns(&rows);
    if !found.accuracy.is_empty() {
        let mut rows = vec![["tokens", "tier", "arm", "dense", "score", "drop", "95 % interval", "items"].map(str::to_owned).to_vec()];
        rows.extend(found.accuracy.iter().map(|a| {
            let interval = format!("{:.3} to {:.3}", a.interval[0], a.interval[1]);
            let scores = [a.dense, a.score, a.drop].map(|x| format!("{x:.3}"));
            let [dense, score, drop] = scores;
            vec![a.length.to_string(), a.tier.clone(), a.arm.clone(), dense, score, drop, interval, a.items.to_string()]
        }));
        out += &columns(&rows);
    }
    if let Some(even) = &found.break_even {
        out += &match even.length {
            Some(length) => format!("skipping decode pays from {length} tokens on ({})\n", even.tier),
            None => format!("skipping decode pays at no measured length ({})\n", even.tier),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_that_a_tier_does_not_have_has_no_time() {
        let speed =
            |tier: &str, ttft_ms, tpot_ms| PriceSpeed { length: 4096, tier: tier.into(), ttft_ms, tpot_ms, ..PriceSpeed::default() };
        let rows = vec![speed("dense", Some(100.0), Some(4.0)), speed("50%", None, Some(2.0)), speed("60%", Some(50.0), Some(0.0))];
        let text = text(&Price { speed: rows, ..Price::default() });
        assert!(text.contains("4096    50%    –        –             2.000    2.00×"), "{text}");
        assert!(text.contains("4096    60%    50.00    2.00×         0.000    not timed"), "{text}");
        assert!(!text.contains("inf") && !text.contains("NaN"), "{text}");
    }
}

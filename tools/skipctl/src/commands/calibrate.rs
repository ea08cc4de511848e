//! `calibrate`: has the daemon measure its checkpoint and write scale tables, and shows the ladder.

use super::evaluate::absolute;
use super::{Context, job};
use crate::cli::{self, CalibratePhaseArg};
use crate::failure::Failure;
use crate::format::percent;
use crate::output::{self, columns};
use serde_json::Value;
use skip_client::protocol::{CalibrateOptions, CalibratePhase, Calibrated, CalibratedPhase};
use skip_tables::Tier;

pub async fn run(context: &Context, args: cli::Calibrate) -> Result<(), Failure> {
    let options = options(args)?;
    let Value::Object(options) = serde_json::to_value(options).unwrap_or_default() else {
        return Err(Failure::Usage("the options are no object".into()));
    };
    let client = context.connect().await?;
    let found: Calibrated = job::finish(&client, "calibrate", options).await?;
    found.notes.iter().for_each(|note| output::note(note));
    context.show(&found, text)
}

fn options(args: cli::Calibrate) -> Result<CalibrateOptions, Failure> {
    let defaults = CalibrateOptions::default();
    let shares = args.target_sparsity.iter().map(|tier| tier.share()).collect();
    let shares = if args.target_sparsity.is_empty() { defaults.target_sparsity } else { shares };
    Ok(CalibrateOptions {
        phase: match args.phase {
            CalibratePhaseArg::Prefill => CalibratePhase::Prefill,
            CalibratePhaseArg::Decode => CalibratePhase::Decode,
            CalibratePhaseArg::Both => CalibratePhase::Both,
        },
        max_seqlen: args.max_seqlen,
        bin_min: args.bin_min,
        bin_step: args.bin_step,
        target_sparsity: shares,
        deploy: args.deploy.map(Tier::share),
        mass_ratio: args.mass_ratio,
        // The daemon reads them, from where it is.
        corpus: args.corpus.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?,
        samples: args.samples,
        decode_tokens: args.decode_tokens,
        seed: args.seed,
        check: args.check,
        cache_dir: args.cache_dir.as_deref().map(absolute).transpose()?,
    })
}

/// What was found, to be read.
pub fn text(found: &Calibrated) -> String {
    let mut out: Vec<String> = found.phases.iter().map(phase).collect();
    if !found.check.is_empty() {
        let mut rows = vec![["on other texts", "from", "tier", "skips", "a text", "texts"].map(str::to_owned).to_vec()];
        rows.extend(found.check.iter().map(|bin| {
            let spread = bin.spread.map(percent).join(" to ");
            vec![bin.phase.clone(), bin.first_length.to_string(), bin.tier.clone(), percent(bin.share), spread, bin.texts.to_string()]
        }));
        out.push(columns(&rows));
    }
    let kept = found.backup.as_ref().map(|path| format!(" (before: {path})")).unwrap_or_default();
    out.push(format!("written to {}{kept}, and in force where nothing goes before it: skipctl table show", found.written));
    out.join("\n")
}

fn phase(found: &CalibratedPhase) -> String {
    let deployed = found.deployed.as_ref().map_or("no tier is reached: dense".into(), |tier| format!("deployed {tier}"));
    let mut rows = vec![["tier", "from", "S", "skips", "mass", "a prompt"].map(str::to_owned).to_vec()];
    for tier in &found.tiers {
        for (i, row) in tier.rows.iter().enumerate() {
            let name = if i == 0 { tier.tier.clone() } else { String::new() };
            let s = row.s.map_or("unreached".into(), |s| format!("{s:.4}"));
            let spread = row.spread.map(percent).join(" to ");
            rows.push(vec![name, row.first_length.to_string(), s, percent(row.share), percent(row.mass), spread]);
        }
    }
    let advice = found.advice.as_ref().map(advice).unwrap_or_default();
    format!("{}: {deployed}\n{}{advice}", found.phase, columns(&rows))
}

/// The verdict in a line, and the layers behind it.
fn advice(advice: &Value) -> String {
    let number = |key: &str| advice[key].as_f64().unwrap_or_default();
    let (verdict, r, bound) = (advice["advice"].as_str().unwrap_or("unknown"), number("ratio"), number("mass_ratio"));
    let layers: Vec<String> = advice["layers"].as_array().into_iter().flatten().map(|layer| layer["layer"].to_string()).collect();
    let because = match layers.len() {
        0 => String::new(),
        _ => format!("; layers over it: {}", layers.join(", ")),
    };
    let shares = format!("{} of the mass for {} of the tiles at worst", percent(number("mass")), percent(number("sparsity")));
    format!("advice: {verdict} (mass / share {r:.3}, bound {bound}: {shares}{because})\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use skip_client::protocol::{CalibratedRow, CalibratedTier, CheckedBin};

    #[test]
    fn shares_are_taken_as_such_and_as_percentages() {
        let read = |args: &[&str]| {
            let all = ["skipctl", "calibrate"].iter().chain(args).copied();
            let cli::Command::Calibrate(args) = <cli::Cli as clap::Parser>::try_parse_from(all)?.command else { panic!() };
            let options = options(args).unwrap();
            Ok::<_, clap::Error>((options.target_sparsity, options.deploy))
        };
        for args in [["--target-sparsity", "0.5,0.625", "--deploy", "0.625"], ["--target-sparsity", "50%,62.5%", "--deploy", "62.5%"]] {
            assert_eq!(read(&args).unwrap(), (vec![0.5, 0.625], Some(0.625)));
        }
        assert_eq!(read(&["--target-sparsity", ".3", "75%"]).unwrap().0, [0.3, 0.75]);
        assert_eq!(read(&[]).unwrap().0, CalibrateOptions::default().target_sparsity);
        for wrong in ["0", "100%", "-5%", "half"] {
            assert!(read(&["--target-sparsity", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ladder_reads_as_a_table() {
        let row = |s, share| CalibratedRow { first_length: 4096, s, share, mass: 0.026, spread: [0.4, share] };
        let tier = |name: &str, s, share| CalibratedTier { tier: name.into(), rows: vec![row(s, share)] };
        let advice = json!({"advice": "on", "ratio": 0.052, "mass_ratio": 0.3, "mass": 0.026, "sparsity": 0.5, "layers": [{"layer": 3}]});
        let phase = CalibratedPhase {
            phase: "prefill".into(),
            deployed: Some("50%".into()),
            tiers: vec![tier("50%", Some(1252.0), 0.5), tier("75%", None, 0.618)],
            advice: Some(advice),
        };
        let check =
            vec![CheckedBin { phase: "prefill".into(), tier: "50%".into(), first_length: 4096, share: 0.49, spread: [0.4, 0.6], texts: 8 }];
        let found = Calibrated { written: "/m/config.json".into(), phases: vec![phase], check, ..Calibrated::default() };
        let text = text(&found);
        for line in [
            "prefill: deployed 50%",
            "50%   4096  1252.0000  50 %   3 %   40 % to 50 %",
            "75%   4096  unreached  62 %",
            "advice: on (mass / share 0.052, bound 0.3: 3 % of the mass for 50 % of the tiles at worst; layers over it: 3)",
            "49 %",
            "written to /m/config.json",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}

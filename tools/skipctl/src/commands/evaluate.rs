//! `evaluate`: has the daemon ask the same items dense and under its tables, shows the difference, and ends with the verdict.

use super::{Context, job};
use crate::cli;
use crate::failure::{Failure, Verdict};
use crate::output::{self, columns};
use crate::saved::Saved;
use serde_json::Value;
use skip_client::protocol::EvaluateOptions;
use std::path::{Path, PathBuf};

pub async fn run(context: &Context, args: cli::Evaluate) -> Result<(), Failure> {
    let save = args.save_results.clone().map(Saved::at).transpose()?;
    let Value::Object(options) = serde_json::to_value(options(args)?).unwrap_or_default() else {
        return Err(Failure::Usage("the options are no object".into()));
    };
    let client = context.connect().await?;
    let found: Value = job::finish(&client, "evaluate", options).await?;
    let saved = save.map_or(Ok(()), |file| file.write(&serde_json::to_string_pretty(&found["results"]).unwrap_or_default()));
    for note in found["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output::note(note);
    }
    // What took an hour is shown, whatever became of its file.
    context.show(&found, text)?;
    saved?;
    match found["verdict"].as_str() {
        Some("fail") => Err(Failure::Verdict(Verdict::Fail)),
        Some("inconclusive") => Err(Failure::Verdict(Verdict::Inconclusive)),
        _ => Ok(()),
    }
}

fn options(args: cli::Evaluate) -> Result<EvaluateOptions, Failure> {
    let one = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
    let defaults = EvaluateOptions::default();
    Ok(EvaluateOptions {
        max_context: args.max_context,
        arm: args.arm,
        tier: args.tier,
        samples: args.samples,
        tasks: args.tasks,
        corpus: args.corpus.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?,
        qa_1: one(&args.qa_1)?,
        qa_2: one(&args.qa_2)?,
        mmlu: one(&args.mmlu)?,
        mmlu_samples: args.mmlu_samples.unwrap_or(defaults.mmlu_samples),
        longbench: one(&args.longbench)?,
        tasks_file: one(&args.tasks_file)?,
        baseline: one(&args.baseline)?,
        label: args.label,
        max_drop: args.max_drop,
        thinking_budget: args.thinking_budget,
        seed: args.seed,
    })
}

/// A path as the daemon, which stands elsewhere, finds it.
pub fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).map_err(|error| Failure::Io(path.display().to_string(), error))?;
    let named = whole.to_str().map(str::to_owned);
    named.ok_or_else(|| Failure::Usage(format!("{}: a path to the daemon must be UTF-8", path.display())))
}

/// What was found, to be read.
pub fn text(found: &Value) -> String {
    let arms = found["results"]["arms"].as_array().map(Vec::as_slice).unwrap_or_default();
    let heads = ["arm", "task", "items", "dense", "arm", "drop", "95 % interval", "would show", "left out", "verdict"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut reasons = Vec::new();
    for arm in arms {
        let name = arm["arm"].as_str().unwrap_or_default();
        let gate = &arm["gate"];
        if gate.is_null() {
            if arms.len() == 1 {
                rows.push(vec![name.to_owned(), "all".into(), score_count(arm), mean(arm)]);
            }
            continue;
        }
        let parts = ["groups", "tasks"].map(|part| gate[part].as_array().map(Vec::as_slice).unwrap_or_default());
        for group in parts.into_iter().flatten() {
            rows.push(comparison(name, group));
        }
        for group in parts[0] {
            let [group, verdict, reason] = ["group", "verdict", "reason"].map(|key| group[key].as_str().unwrap_or_default());
            reasons.push(format!("{name}, {group}: {verdict}: {reason}"));
        }
    }
    format!("{}{}", columns(&rows), reasons.join("\n"))
}

fn score_count(arm: &Value) -> String {
    arm["scores"].as_array().map_or(0, Vec::len).to_string()
}

fn mean(arm: &Value) -> String {
    let scores: Vec<f64> = arm["scores"].as_array().into_iter().flatten().filter_map(|score| score["score"].as_f64()).collect();
    format!("{:.3}", scores.iter().sum::<f64>() / scores.len().max(1) as f64)
}

fn comparison(arm: &str, group: &Value) -> Vec<String> {
    let kept = &group["kept"];
    let number = |value: &Value| value.as_f64().map_or("–".into(), |v| format!("{v:.3}"));
    let interval = format!("{} to {}", number(&kept["interval"][0]), number(&kept["interval"][1]));
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    vec![
        arm.to_owned(),
        word(&group["group"]),
        kept["n"].to_string(),
        number(&kept["dense"]),
        number(&kept["arm"]),
        number(&kept["drop"]),
        interval,
        number(&kept["detectable"]),
        group["left_out"].to_string(),
        word(&group["verdict"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_evaluation_reads_as_a_table_with_its_reasons() {
        let drop = json!({"n": 88, "dense": 0.81, "arm": 0.80, "drop": 0.01, "interval": [-0.01, 0.028], "detectable": 0.027});
        let group =
            json!({"group": "ruler", "kept": drop, "all": drop, "left_out": 3, "verdict": "pass", "reason": "the drop is at most 0.028"});
        let arms = json!([{"arm": "dense", "scores": []}, {"arm": "both", "scores": [], "gate": {"groups": [group], "tasks": []}}]);
        let text = text(&json!({"results": {"arms": arms}, "verdict": "pass"}));
        assert!(text.contains("both  ruler  88     0.810  0.800  0.010  -0.010 to 0.028  0.027"), "{text}");
        assert!(text.ends_with("both, ruler: pass: the drop is at most 0.028"), "{text}");
    }

    #[test]
    fn dense_alone_has_a_mean() {
        let scores = json!([{"id": "a", "score": 1.0}, {"id": "b", "score": 0.5}]);
        let text = text(&json!({"results": {"arms": [{"arm": "dense", "scores": scores}]}}));
        assert!(text.contains("dense  all   2      0.750"), "{text}");
    }
}

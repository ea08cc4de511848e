//! The result: a superset of the fields that Jetson users paste (`jetson-llm-benchmark`), and as a table.

use super::clocks::Clocks;
use super::measure::Run;
use crate::cli::Bench;
use crate::format::{milliseconds, percent};
use crate::output::columns;
use serde::Serialize;
use skip_client::protocol::Status;

/// Everything, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    runtime: &'static str,
    version: String,
    model: String,
    checkpoint_hash: Option<String>,
    /// The board or machine, as its firmware names it.
    sku: Option<String>,
    /// Jetson Linux's release, where this is one.
    l4t: Option<String>,
    backend: String,
    kernel_set: String,
    kv_format: String,
    config: Config,
    runs: Vec<Run>,
    /// Of the time in engine steps over all runs; null where it is not measured.
    attention_share: Option<f64>,
    clocks: [Clocks; 2],
    /// After the run: unpinned, pinned, throttled or uncontrolled.
    clock_state: &'static str,
    /// The profile that pinned them.
    clock_profile: Option<String>,
    /// Whether the same profile held the clocks from before the run to its end.
    comparable: bool,
    /// Why not.
    incomparable_reason: Option<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Config {
    /// The first prompt length; each run says its own.
    input_len: u32,
    output_len: u32,
    /// Requests of a run.
    num_prompts: u32,
    input_lens: Vec<u32>,
    rounds: u32,
}

impl Report {
    /// Puts it together.
    pub fn new(
        status: &Status,
        args: &Bench,
        runs: Vec<Run>,
        attention_share: Option<f64>,
        clocks: [Clocks; 2],
        warnings: Vec<String>,
    ) -> Self {
        let model = status.model.clone().unwrap_or_default();
        let backend = status.backend.clone().unwrap_or_default();
        let mut input_lens: Vec<u32> = runs.iter().map(|run| run.input_len).collect();
        input_lens.dedup();
        let [before, after] = &clocks;
        let incomparable_reason = after.incomparable(before);
        Self {
            runtime: "skipd",
            version: status.version.clone(),
            model: model.name,
            checkpoint_hash: model.checkpoint_hash,
            sku: first_line(&["/proc/device-tree/model", "/sys/class/dmi/id/product_name"]),
            l4t: first_line(&["/etc/nv_tegra_release"]),
            backend: backend.name,
            kernel_set: backend.kernel_set,
            kv_format: backend.kv_format,
            config: Config {
                input_len: input_lens.first().copied().unwrap_or(0),
                output_len: args.tokens,
                num_prompts: args.rounds,
                input_lens,
                rounds: args.rounds,
            },
            runs,
            attention_share,
            clock_state: after.pinning.state.name(),
            clock_profile: after.pinning.profile.clone(),
            comparable: incomparable_reason.is_none(),
            incomparable_reason,
            clocks,
            warnings,
        }
    }

    /// As a person reads it; warnings first and last.
    pub fn text(&self) -> String {
        let mut rows = vec![
            ["prompt", "at once", "", "TTFT", "", "prefill tok/s", "skipped", "TPOT", "", "decode tok/s", "skipped", "all tok/s"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for run in &self.runs {
            let skipped =
                |table: &Option<String>, share| table.as_ref().map_or(String::new(), |table| format!("{} ({table})", percent(share)));
            rows.push(vec![
                run.input_len.to_string(),
                run.concurrency.to_string(),
                run.mode.to_owned(),
                milliseconds(run.ttft_ms_p50),
                format!("±{:.0} %", run.spread[0] * 100.0),
                format!("{:.0}", run.prefill_tok_s),
                skipped(&run.tables[0], run.sparsity.prefill),
                format!("{:.3} ms", run.tpot_ms_p50),
                format!("±{:.0} %", run.spread[1] * 100.0),
                format!("{:.1}", run.decode_tok_s),
                skipped(&run.tables[1], run.sparsity.decode),
                format!("{:.1}", run.throughput_tok_s),
            ]);
        }
        let attention = self.attention_share.map_or(String::new(), |share| format!(", {} of the time in attention", percent(share)));
        format!(
            "{}: {}, {}, {} cache{attention}\n{}{}",
            self.model,
            self.backend,
            self.kernel_set,
            self.kv_format,
            columns(&rows),
            self.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>(),
        )
    }
}

/// The first line of the first of these files that has one.
fn first_line(paths: &[&str]) -> Option<String> {
    paths.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().next()?.trim_matches(['\0', ' ']).to_owned();
        (!line.is_empty()).then_some(line)
    })
}

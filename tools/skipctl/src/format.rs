//! How things read: usage, shares, durations, tables.

use crate::output::columns;
use skip_client::protocol::{
    ClockStatus, JobState, JobStatus, PhaseTable, Prefix, PrefixList, ProfileInfo, ProfileShow, Qualification, Status, TableShow, Tier,
    TierList, UpdateShow, UpdateSlot, Usage,
};
use std::time::Duration;

/// The line under an answer: `TTFT 812 ms · prefill 6012 tokens, 740 tokens/s, skipped 51 % (50%) · decode 64 tokens, 62.1 tokens/s, dense`.
pub fn usage(usage: &Usage) -> String {
    let prefill = &usage.skipd.prefill;
    let decode = &usage.skipd.decode;
    let reused = match usage.skipd.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} reused)"),
    };
    format!(
        "TTFT {} · prefill {} tokens{reused}{}, {} · decode {} tokens{}, {}",
        milliseconds(usage.ttft_ms()),
        usage.prompt_tokens,
        rate(usage.prefill_rate()),
        skipped(prefill.table.as_deref(), prefill.share()),
        usage.completion_tokens,
        rate(usage.decode_rate()),
        skipped(decode.table.as_deref(), decode.share()),
    )
}

fn skipped(table: Option<&str>, share: f64) -> String {
    match table {
        Some(table) => format!("skipped {} ({table})", percent(share)),
        None => "dense".into(),
    }
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        Some(rate) if rate >= 100.0 => format!(", {rate:.0} tokens/s"),
        Some(rate) => format!(", {rate:.1} tokens/s"),
        None => String::new(),
    }
}

/// `51 %`, with more digits near the ends so that little is not shown as nothing, nor nearly all as all.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 | 100.0 => format!("{percent:.0} %"),
        p if !(1.0..=99.0).contains(&p) => format!("{p:.2} %"),
        p => format!("{p:.0} %"),
    }
}

/// How many times one time is another: `1.50×`; `–` where one was not measured, words where they make no number.
pub fn times(of: Option<f64>, to: Option<f64>) -> String {
    let (Some(of), Some(to)) = (of, to) else { return "–".into() };
    ratio(of, to).map_or("not timed".into(), |times| format!("{times:.2}×"))
}

/// A quotient of two times; None where no clock gives such ones.
pub fn ratio(of: f64, to: f64) -> Option<f64> {
    Some(of / to).filter(|ratio| of > 0.0 && to > 0.0 && (1e-6..=1e6).contains(ratio))
}

/// `0.8 ms`, `812 ms`, `13.21 s`, `184 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1e4 => format!("{ms:.0} ms"),
        ms if ms < 1e5 => format!("{:.2} s", ms / 1e3),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

/// `45 s`, `3 min`, `2 h 5 min`, `4 d 2 h`.
pub fn span(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// What `job list` prints.
pub fn jobs(jobs: &[JobStatus]) -> String {
    if jobs.is_empty() {
        return "no jobs".into();
    }
    let row = |job: &JobStatus| {
        let at = match job.state {
            JobState::Running => format!("{:.0} % {}", job.progress * 100.0, job.stage),
            _ => job.error.clone().unwrap_or_default(),
        };
        let left = job.eta_s.map(|s| format!("{} left", span(Duration::from_secs_f64(s.clamp(0.0, 1e9))))).unwrap_or_default();
        vec![job.id.clone(), job.kind.clone(), job.state.name().to_owned(), at, left]
    };
    columns(&jobs.iter().map(row).collect::<Vec<_>>())
}

/// What `status` prints.
pub fn status(status: &Status) -> String {
    let mut rows = Vec::new();
    let mut add = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    let progress = if status.load_progress < 1.0 { format!(" {:.0} %", status.load_progress * 100.0) } else { String::new() };
    let up = if status.uptime_ms > 0 { format!(", up {}", span(Duration::from_millis(status.uptime_ms))) } else { String::new() };
    add("state", format!("{}{progress} (skipd {}{up})", status.state, status.version));
    if !status.availability.reason.is_empty() {
        add("reason", status.availability.reason.clone());
    }
    if let Some(model) = &status.model {
        let kind = if model.architecture.is_empty() { String::new() } else { format!("{}, ", model.architecture) };
        add("model", format!("{} ({kind}context {})", model.name, model.context_length));
    }
    if let Some(backend) = &status.backend {
        let mut text = format!("{} {}", backend.name, backend.kernel_set);
        text.extend(backend.threads.map(|n| format!(", {n} threads")));
        if !backend.kv_format.is_empty() {
            text.push_str(&format!(", KV {}", backend.kv_format));
        }
        if !backend.reason.is_empty() {
            text.push_str(&format!(": {}", backend.reason));
        }
        add("backend", text);
    }
    let name = |table: &Option<String>| table.clone().unwrap_or_else(|| "dense".into());
    add("tables", format!("prefill {}, decode {}", name(&status.tables.prefill), name(&status.tables.decode)));
    for alarm in &status.alarms {
        add("alarm", alarm.clone());
    }
    for warning in &status.warnings {
        add("warning", warning.clone());
    }
    let share = |share: Option<f64>| share.map_or("–".into(), percent);
    add("skipped", format!("prefill {}, decode {}", share(status.measured_sparsity.prefill), share(status.measured_sparsity.decode)));
    if status.queue.limit > 0 {
        add("requests", format!("{} running, {} waiting (at most {})", status.queue.running, status.queue.waiting, status.queue.limit));
    }
    let background = &status.background;
    if (1..100).contains(&background.duty_percent) {
        let (busy, rest) = (background.step_seconds, background.rest_seconds);
        add("background", format!("at most {} % of the time alone; {busy:.1} s computed, {rest:.1} s rested", background.duty_percent));
    }
    if let Some(clocks) = &status.clocks {
        add("clocks", clocks_in_words(clocks));
    }
    if status.cache.pages > 0 {
        let cache = &status.cache;
        let kept = [(cache.cached, "of them hold earlier prompts"), (cache.pinned, "others are pinned")];
        let kept: String = kept.iter().filter(|(pages, _)| *pages > 0).map(|(pages, what)| format!(", {pages} {what}")).collect();
        add("cache", format!("{} of {} pages of 128 tokens free{kept}", cache.free, cache.pages));
    }
    if let Some(memory) = &status.memory {
        let parts: Vec<String> = memory.counted.iter().map(|(what, bytes)| format!("{what} {}", bytes.div_ceil(1 << 20))).collect();
        let (total, free) = (memory.total.div_ceil(1 << 20), memory.free_before >> 20);
        let text = format!("{total} MiB counted ({}), {free} were free {}", parts.join(", "), memory.source);
        add("memory", text.trim_end().to_owned());
    }
    if let Some(load) = status.load.filter(|load| load.seconds > 0.0) {
        let megabytes = load.bytes as f64 / 1e6;
        let disk = load.reads.filter(|reads| reads.seconds > 0.0).map_or(String::new(), |reads| {
            let how = if reads.direct { "" } else { ", through the page cache" };
            format!("; the disk alone {:.0} MB/s{how}", reads.bytes as f64 / 1e6 / reads.seconds)
        });
        add("loaded", format!("{megabytes:.0} MB of weights in {:.1} s, {:.0} MB/s{disk}", load.seconds, megabytes / load.seconds));
    }
    columns(&rows)
}

/// What `qualify` prints.
pub fn qualification(found: &Qualification) -> String {
    let mut rows = vec![["KERNEL", "VERDICT", "TIME", ""].map(str::to_owned).to_vec()];
    rows.extend(found.kernels.iter().map(|k| {
        let time = k.micros.map_or(String::new(), |micros| format!("{micros:.1} µs"));
        vec![k.kernel.clone(), k.verdict.name().to_owned(), time, k.reason.clone().unwrap_or_default()]
    }));
    let Qualification { device, capability, driver, .. } = found;
    format!("{device}, compute capability {capability}, CUDA {driver}\n{}", columns(&rows))
}

/// What `table show` prints.
pub fn tables(show: &TableShow) -> String {
    format!("{}\n{}", table(&show.prefill), table(&show.decode))
}

/// One phase of `table show`, and what `set-table` prints.
pub fn table(table: &PhaseTable) -> String {
    let mut rows = vec![vec![table.phase.name().to_owned(), table.name().unwrap_or_else(|| "dense".into())]];
    let mut add = |name: &str, text: String| rows.push(vec![format!("  {name}"), text]);
    let place = if table.location.is_empty() { String::new() } else { format!(", {}", table.location) };
    add("decided by", format!("{}{place}", table.decided_by));
    if let Some(hash) = &table.hash {
        add("version", format!("{}, sha256 {hash}", table.version));
    }
    if let Some(rows) = &table.rows {
        add("rows", rows_text(rows));
    }
    if let Some(longest) = table.max_length {
        add("up to", format!("{longest} tokens; longer sequences run dense"));
    }
    if let Some(share) = table.measured {
        add("skipped", percent(share));
    }
    if let Some(pending) = &table.pending {
        let back = pending.previous.as_deref().unwrap_or("dense");
        let left = span(Duration::from_millis(pending.remaining_ms));
        add("on trial", format!("back to {back} in {left} unless `skipctl confirm`"));
    }
    for notice in &table.notices {
        add("note", notice.clone());
    }
    columns(&rows)
}

fn rows_text(rows: &[(u32, f32)]) -> String {
    const SHOWN: usize = 16;
    let mut cells: Vec<String> = rows.iter().take(SHOWN).map(|(length, s)| format!("[{length}, {s}]")).collect();
    if rows.len() > SHOWN {
        cells.push(format!("and {} more", rows.len() - SHOWN));
    }
    cells.join(" ")
}

/// What `update …` prints.
pub fn update(shown: &UpdateShow) -> String {
    let line = |slot: &Option<UpdateSlot>| match slot {
        Some(slot) => format!("version {} ({}) {}", slot.version, slot.slot, slot.note).trim_end().to_owned(),
        None => "none".into(),
    };
    let mut lines = vec![format!("in force  {}", line(&shown.active)), format!("before    {}", line(&shown.previous))];
    if let Some(trial) = &shown.probation {
        let stage = if trial.stage.is_empty() { "not measured yet" } else { &trial.stage };
        lines.push(format!("on trial  {}: {stage}; {} tries left", line(&Some(trial.slot.clone())), trial.tries_left));
    }
    lines.extend(shown.reason.iter().map(|reason| format!("last      {reason}")));
    lines.extend(shown.problems.iter().map(|problem| format!("damaged   {problem}")));
    lines.push(format!("taken     versions above {}", shown.floor));
    lines.join("\n")
}

/// What `profile list` prints.
pub fn profiles(show: &ProfileShow) -> String {
    let row = |profile: &ProfileInfo| {
        let stands = match &profile.unfit {
            _ if show.clocks.profile.as_ref() == Some(&profile.name) => "applied",
            Some(_) => "unfit",
            None => "fits",
        };
        let own = if profile.own { "own" } else { "" };
        vec![profile.name.clone(), stands.to_owned(), own.to_owned(), profile.unfit.clone().unwrap_or_else(|| profile.about.clone())]
    };
    columns(&show.profiles.iter().map(row).collect::<Vec<_>>())
}

/// What `profile show`, `apply` and `release` print.
pub fn clocks(show: &ProfileShow) -> String {
    let ProfileShow { board, clocks, .. } = show;
    let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    let mut rows = Vec::new();
    let mut add = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    add("board", format!("{} ({})", or(&board.model), board.kind));
    add("L4T", or(&board.l4t));
    add("mode", or(&board.mode));
    add("clocks", clocks_in_words(clocks));
    clocks.refused.iter().for_each(|line| add("refused", line.clone()));
    clocks.reasons.iter().for_each(|line| add("", line.clone()));
    columns(&rows)
}

fn clocks_in_words(clocks: &ClockStatus) -> String {
    let applied = clocks.profile.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let held = if clocks.background_held { "; background requests are held back" } else { "" };
    format!("{}{applied}{held}", clocks.state)
}

/// What `prefix list` prints.
pub fn prefixes(list: &PrefixList) -> String {
    let pages: u32 = list.prefixes.iter().map(|prefix| prefix.pages).sum();
    let sum = format!("{pages} of at most {} pages of 128 tokens are pinned\n", list.limit_pages);
    if list.prefixes.is_empty() {
        return sum;
    }
    let mut rows = vec![["NAME", "TOKENS", "PAGES", "HELD", "OWNER", "HITS"].map(str::to_owned).to_vec()];
    rows.extend(list.prefixes.iter().map(|prefix| {
        let Prefix { name, tokens, pages, held, owner, hits } = prefix;
        vec![name.clone(), tokens.to_string(), pages.to_string(), held.to_string(), owner.to_string(), hits.to_string()]
    }));
    columns(&rows) + &sum
}

/// What `prefix pin` and `prefix drop` print.
pub fn prefix(prefix: &Prefix) -> String {
    format!("{}: {} tokens in {} pages", prefix.name, prefix.tokens, prefix.pages)
}

/// What `tiers` prints.
pub fn tiers(list: &TierList) -> String {
    let mut rows = vec![["PHASE", "TIER", "BINS", "LENGTHS", ""].map(str::to_owned).to_vec()];
    for (phase, tiers) in [("prefill", &list.prefill), ("decode", &list.decode)] {
        rows.extend(tiers.iter().map(|tier| tier_row(phase, tier)));
    }
    if rows.len() == 1 {
        return "the checkpoint has no ladder; calibrate it, or give set-table a table\n".into();
    }
    columns(&rows)
}

fn tier_row(phase: &str, tier: &Tier) -> Vec<String> {
    let skipping = tier.rows.iter().filter(|(_, s)| *s > 0.0).count();
    let first = tier.rows.iter().find(|(_, s)| *s > 0.0).map(|(length, _)| format!("from {length}"));
    let mut remarks = Vec::new();
    if tier.in_force {
        remarks.push("in force".to_owned());
    }
    if !tier.reached {
        remarks.push("never reached".to_owned());
    } else if !tier.unreached_bins.is_empty() {
        let bins: Vec<String> = tier.unreached_bins.iter().map(u32::to_string).collect();
        remarks.push(format!("not reached, so dense, in the bins from {}", bins.join(", ")));
    }
    vec![
        phase.to_owned(),
        tier.name.clone(),
        format!("{skipping}/{}", tier.rows.len()),
        first.unwrap_or_else(|| "–".into()),
        remarks.join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::{
        BoardStatus, ClockState, DecidedBy, DecodeUsage, KernelVerdict, Pending, Phase, PrefillUsage, SkipdUsage, Timings, Verdict,
    };

    #[test]
    fn usage_reads_as_a_line() {
        let usage = Usage {
            prompt_tokens: 6012,
            completion_tokens: 64,
            total_tokens: 6076,
            skipd: SkipdUsage {
                prefill: PrefillUsage { table: Some("50%".into()), row: Some((4096, 3.0)), votes: 1000, skipped: 512 },
                decode: DecodeUsage::default(),
                reused_tokens: 128,
                timings_ms: Timings { queue: 1.0, prefill: 8000.0, decode: 1000.0 },
            },
        };
        insta::assert_snapshot!(super::usage(&usage), @"TTFT 8001 ms · prefill 6012 tokens (128 reused), 736 tokens/s, skipped 51 % (50%) · decode 64 tokens, 63.0 tokens/s, dense");
    }

    #[test]
    fn shares_near_the_ends_keep_their_digits() {
        assert_eq!([0.0, 0.0004, 0.512, 0.9996, 1.0].map(percent), ["0 %", "0.04 %", "51 %", "99.96 %", "100 %"]);
    }

    #[test]
    fn spans_are_read_at_a_glance() {
        assert_eq!([45, 180, 7500, 353_000].map(|s| span(Duration::from_secs(s))), ["45 s", "3 min", "2 h 5 min", "4 d 2 h"]);
    }

    #[test]
    fn what_was_found_of_kernels_reads_as_a_table() {
        let kernel = |kernel: &str, verdict, micros, reason: Option<&str>| KernelVerdict {
            kernel: kernel.into(),
            verdict,
            micros,
            reason: reason.map(str::to_owned),
        };
        let found = Qualification {
            device: "NVIDIA H200".into(),
            capability: "9.0".into(),
            driver: "13.0".into(),
            kernels: vec![
                kernel("embed_bf16", Verdict::Right, Some(3.21), None),
                kernel("gemv_bf16_bf16_b1", Verdict::Hung, None, Some("no end within 10s")),
            ],
            ..Qualification::default()
        };
        insta::assert_snapshot!(qualification(&found), @r"
        NVIDIA H200, compute capability 9.0, CUDA 13.0
        KERNEL             VERDICT  TIME
        embed_bf16         right    3.2 µs
        gemv_bf16_bf16_b1  hung             no end within 10s
        ");
    }

    #[test]
    fn prefixes_are_listed_with_what_they_may_take() {
        let prefix = |name: &str, pages, hits| Prefix { name: name.into(), tokens: pages * 128, pages, held: pages, owner: 0, hits };
        let mut list = PrefixList { prefixes: vec![prefix("robot", 9, 1204), prefix("prefix-1", 1, 0)], limit_pages: 96 };
        insta::assert_snapshot!(prefixes(&list), @r"
        NAME      TOKENS  PAGES  HELD  OWNER  HITS
        robot     1152    9      9     0      1204
        prefix-1  128     1      1     0      0
        10 of at most 96 pages of 128 tokens are pinned
        ");
        list.prefixes.clear();
        insta::assert_snapshot!(prefixes(&list), @"0 of at most 96 pages of 128 tokens are pinned");
    }

    #[test]
    fn a_board_reads_with_its_clocks_and_its_profiles() {
        let profile = |name: &str, about: &str, own, unfit: Option<&str>| ProfileInfo {
            name: name.into(),
            about: about.into(),
            own,
            unfit: unfit.map(str::to_owned),
        };
        let show = ProfileShow {
            board: BoardStatus { kind: "thor".into(), model: Some("NVIDIA Jetson AGX Thor".into()), mode: Some("120W".into()), l4t: None },
            clocks: ClockStatus {
                state: ClockState::Throttled,
                profile: Some("thor-120w".into()),
                reasons: vec!["tj is at 101.0 °C, above 99.0".into()],
                refused: vec!["fan/pwm1: absent".into()],
                background_held: true,
                ..ClockStatus::default()
            },
            profiles: vec![
                profile("quiet", "fan at a half", true, None),
                profile("thor-120w", "clocks at its caps", false, None),
                profile("thor-maxn", "no power cap", false, Some("profile thor-maxn is for power mode MAXN")),
            ],
        };
        insta::assert_snapshot!(clocks(&show), @r"
        board    NVIDIA Jetson AGX Thor (thor)
        L4T      unknown
        mode     120W
        clocks   throttled (thor-120w); background requests are held back
        refused  fan/pwm1: absent
                 tj is at 101.0 °C, above 99.0
        ");
        insta::assert_snapshot!(profiles(&show), @r"
        quiet      fits     own  fan at a half
        thor-120w  applied       clocks at its caps
        thor-maxn  unfit         profile thor-maxn is for power mode MAXN
        ");
    }

    #[test]
    fn a_table_on_trial_tells_what_comes_back() {
        let table = PhaseTable {
            phase: Phase::Prefill,
            tier: Some("50%".into()),
            rows: Some(vec![(256, 0.0), (910, 61.5)]),
            max_length: Some(8192),
            decided_by: DecidedBy::SetTable,
            location: String::new(),
            hash: Some("ab".repeat(32)),
            version: 3,
            notices: vec!["bins that do not reach the tier run dense: 256".into()],
            pending: Some(Pending { remaining_ms: 58_000, deadline_unix_ms: 0, previous: None, persist: false }),
            measured: Some(0.512),
        };
        insta::assert_snapshot!(super::table(&table));
    }
}

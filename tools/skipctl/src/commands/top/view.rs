//! One frame of `top`: what the daemon does between two looks, and the requests under way.

use crate::format::{milliseconds, percent, span};
use crate::output::columns;
use skip_client::protocol::{Activity, RequestStatus, Skips, Status};
use std::time::Duration;

/// The frame. Rates and shares are of the time between the looks; of a first look, those of the last steps and since the start.
/// It has at most `lines` lines.
pub fn frame(status: &Status, now: &Activity, before: Option<&Activity>, lines: usize) -> String {
    // A daemon that began anew has nothing in common with what was there before.
    let before = before.filter(|before| before.uptime_ms < now.uptime_ms);
    let mut rows = Vec::new();
    let mut add = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    add("skipd", daemon(status, now));
    add("requests", requests(status, now));
    add("rates", rates(now, before));
    if let Some(before) = before {
        add("time", shares_of_time(now, before));
    }
    let skipped = |name: &str, of: fn(&Activity) -> Skips, table: &Option<String>| {
        let share = share(of(now), before.map(of));
        format!("{name} {} ({})", share.map_or("–".into(), percent), table.as_deref().unwrap_or("dense"))
    };
    let prefill = skipped("prefill", |activity| activity.totals.prefill, &status.tables.prefill);
    let decode = skipped("decode", |activity| activity.totals.decode, &status.tables.decode);
    add("skipped", format!("{prefill}, {decode}"));
    let cache = &status.cache;
    let used = cache.pages.saturating_sub(cache.free);
    let kept = format!("{} of them hold earlier prompts; {} are pinned", cache.cached, cache.pinned);
    add("cache", format!("{used} of {} pages set aside, {} free, {kept}", cache.pages, cache.free));
    add("memory", memory(status, now));
    // An empty line and the table's head stand between.
    let room = lines.saturating_sub(rows.len() + 2);
    let text = format!("{}\n{}", columns(&rows), table(&now.requests, room));
    text.split_inclusive('\n').take(lines).collect()
}

fn daemon(status: &Status, now: &Activity) -> String {
    let mut text = format!("{}, up {}", status.state, span(Duration::from_millis(now.uptime_ms)));
    if let Some(model) = &status.model {
        text.push_str(&format!(": {}", model.name));
    }
    if let Some(backend) = &status.backend {
        text.push_str(&format!(" on {} {}", backend.name, backend.kernel_set));
    }
    text
}

fn requests(status: &Status, now: &Activity) -> String {
    let mut text = format!("{} running, {} waiting (at most {})", status.queue.running, status.queue.waiting, status.queue.limit);
    let others = now.others.running + now.others.waiting;
    if others > 0 {
        text.push_str(&format!("; {others} of other users not listed"));
    }
    text
}

fn rates(now: &Activity, before: Option<&Activity>) -> String {
    let rate = |rate: f64| if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") };
    let (prefill, decode) = match before {
        None => (now.speed.prefill, now.speed.decode),
        Some(before) => {
            let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64;
            let seconds = seconds_between(now, before);
            let (now, before) = (&now.totals, &before.totals);
            (
                per_second(now.prompt_tokens, before.prompt_tokens) / seconds,
                per_second(now.completion_tokens, before.completion_tokens) / seconds,
            )
        }
    };
    format!("prefill {} tokens/s, decode {} tokens/s", rate(prefill), rate(decode))
}

fn shares_of_time(now: &Activity, before: &Activity) -> String {
    let seconds = seconds_between(now, before);
    // A step counts when it ends: a long one may be more than the time between two looks.
    let share = |now: f64, before: f64| ((now - before) / seconds).clamp(0.0, 1.0);
    let prefill = share(now.totals.prefill_seconds, before.totals.prefill_seconds);
    let decode = share(now.totals.decode_seconds, before.totals.decode_seconds);
    let idle = (1.0 - prefill - decode).max(0.0);
    format!("prefill {}, decode {}, idle {}", percent(prefill), percent(decode), percent(idle))
}

fn seconds_between(now: &Activity, before: &Activity) -> f64 {
    now.uptime_ms.saturating_sub(before.uptime_ms).max(1) as f64 / 1e3
}

/// Of the votes since `before`; None where there were none.
fn share(now: Skips, before: Option<Skips>) -> Option<f64> {
    let before = before.unwrap_or_default();
    let votes = now.votes.saturating_sub(before.votes);
    (votes > 0).then(|| now.skipped.saturating_sub(before.skipped) as f64 / votes as f64)
}

fn memory(status: &Status, now: &Activity) -> String {
    let process = &now.process;
    let mut text = format!(
        "process {} MiB, {} of them its own; {} threads, {} descriptors",
        process.resident_bytes >> 20,
        process.anonymous_bytes >> 20,
        process.threads,
        process.descriptors
    );
    if let Some(model) = &status.memory {
        text.push_str(&format!("; model {} MiB counted", model.total.div_ceil(1 << 20)));
    }
    text
}

/// In at most `room` lines below its head; the last says how many are not shown.
fn table(requests: &[RequestStatus], room: usize) -> String {
    if requests.is_empty() {
        return String::new();
    }
    let mut rows = vec![["ID", "UID", "CLASS", "STATE", "PROMPT", "ANSWER", "TOKENS/S", "WAITED"].map(str::to_owned).to_vec()];
    let shown = if requests.len() > room { room.saturating_sub(1) } else { requests.len() };
    rows.extend(requests.iter().take(shown).map(row));
    if requests.len() > shown {
        rows.push(vec![format!("and {} more", requests.len() - shown)]);
    }
    columns(&rows)
}

fn row(request: &RequestStatus) -> Vec<String> {
    let class = serde_json::to_value(request.priority).ok().and_then(|word| word.as_str().map(str::to_owned));
    vec![
        request.id.clone(),
        request.uid.to_string(),
        // A unit variant always serialises to its word.
        class.unwrap_or_default(),
        request.state.name().to_owned(),
        format!("{}/{}", request.prefilled_tokens, request.prompt_tokens),
        format!("{}/{}", request.completion_tokens, request.max_tokens),
        request.tokens_per_second.map_or("–".into(), |rate| format!("{rate:.1}")),
        milliseconds(request.waited_ms),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::{
        BackendStatus, CacheStatus, ModelStatus, Others, Priority, ProcessStatus, QueueStatus, RequestState, Speed, State, TableNames,
        Totals,
    };

    fn status() -> Status {
        Status {
            state: State::Ready,
            model: Some(ModelStatus { name: "smollm2".into(), ..ModelStatus::default() }),
            backend: Some(BackendStatus { name: "cpu".into(), kernel_set: "avx512".into(), ..BackendStatus::default() }),
            tables: TableNames { prefill: Some("50%".into()), decode: None },
            queue: QueueStatus { running: 2, waiting: 1, limit: 64 },
            cache: CacheStatus { pages: 128, free: 88, cached: 9, pinned: 4 },
            ..Status::default()
        }
    }

    fn look(uptime_ms: u64, prompt_tokens: u64, skipped: u64) -> Activity {
        let request = RequestStatus {
            id: "robot-7".into(),
            uid: 1000,
            priority: Priority::Control,
            state: RequestState::Decode,
            prompt_tokens: 6012,
            prefilled_tokens: 6012,
            completion_tokens: 12,
            max_tokens: 64,
            tokens_per_second: Some(61.25),
            waited_ms: 0.4,
            pages: 48,
        };
        let waiting =
            RequestStatus { id: "1_42/r0".into(), prompt_tokens: 9, max_tokens: 16, waited_ms: 812.0, ..RequestStatus::default() };
        Activity {
            uptime_ms,
            requests: vec![request, waiting],
            others: Others { running: 1, waiting: 0 },
            totals: Totals {
                prompt_tokens,
                completion_tokens: prompt_tokens / 16,
                steps: 9,
                prefill_seconds: prompt_tokens as f64 / 1000.0,
                decode_seconds: 0.5,
                prefill: Skips { votes: 2 * prompt_tokens, skipped },
                decode: Skips::default(),
            },
            speed: Speed { prefill: 740.4, decode: 61.0 },
            process: ProcessStatus { resident_bytes: 812 << 20, anonymous_bytes: 96 << 20, threads: 6, descriptors: 23 },
        }
    }

    #[test]
    fn a_first_look_tells_of_the_last_steps() {
        insta::assert_snapshot!(frame(&status(), &look(183_000, 1000, 1000), None, 24));
    }

    #[test]
    fn a_second_look_tells_of_the_time_between() {
        insta::assert_snapshot!(frame(&status(), &look(184_000, 1400, 1100), Some(&look(183_000, 1000, 1000)), 24));
    }

    #[test]
    fn a_daemon_that_began_anew_is_a_first_look() {
        let now = look(1000, 10, 10);
        assert_eq!(frame(&status(), &now, Some(&look(183_000, 1000, 1000)), 24), frame(&status(), &now, None, 24));
    }

    #[test]
    fn no_frame_is_longer_than_its_screen_and_what_is_left_out_is_counted() {
        let mut now = look(1000, 10, 10);
        now.requests = vec![now.requests[0].clone(); 20];
        // Six lines of the daemon, an empty one, the table's head.
        for (lines, listed) in [(usize::MAX, 20), (28, 20), (27, 18), (12, 3), (10, 1)] {
            let shown = frame(&status(), &now, None, lines);
            assert_eq!(shown.matches("robot-7").count(), listed, "{lines}: {shown}");
            assert_eq!(shown.contains("more"), listed < 20);
            assert!(listed == 20 || (shown.ends_with(&format!("and {} more\n", 20 - listed)) && shown.lines().count() == lines), "{shown}");
        }
        for lines in 0..9 {
            assert!(frame(&status(), &now, None, lines).lines().count() <= lines);
        }
    }
}

//! One scrape: the counted histograms and a snapshot of the engine, as Prometheus text.

use super::{Labels, Metrics};
use crate::activity;
use crate::state::Daemon;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};
use skip_client::protocol::{ClockState, Phase, State};
use skip_engine::stats::Status;
use std::sync::atomic::AtomicU64;

type Share = Gauge<f64, AtomicU64>;
type Total = Counter<f64, AtomicU64>;

/// Prometheus (OpenMetrics) text.
pub fn render(daemon: &Daemon) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_labels([("model_name".into(), daemon.config.model_name.clone().into())].into_iter());
    counted(&mut registry, &daemon.metrics);
    process(&mut registry, daemon);
    clocks(&mut registry, daemon);
    if let Some(model) = daemon.model() {
        let status = model.engine.status();
        requests(&mut registry, &status);
        attention(&mut registry, &status);
        tables(&mut registry, daemon);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn counted(registry: &mut Registry, metrics: &Metrics) {
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "From arrival to the first token", &metrics.first_token),
        ("request_time_per_output_token_seconds", "Mean time a token after the first, one sample a request", &metrics.per_token),
        ("e2e_request_latency_seconds", "From arrival to the end", &metrics.whole),
        ("request_queue_time_seconds", "Waiting for admission", &metrics.queue),
        ("request_prefill_time_seconds", "From admission to the first token", &metrics.prefill),
        ("request_decode_time_seconds", "From the first token to the last", &metrics.decode),
    ] {
        register(registry, &format!("vllm:{name}"), help, histogram.clone());
    }
    registry.register("vllm:request_success", "Requests ended, by reason; `abort`: the client was gone", metrics.finished.clone());
    registry.register("skipd_requests_refused", "Requests not taken, by error code", metrics.refused.clone());
}

fn process(registry: &mut Registry, daemon: &Daemon) {
    let stage = daemon.life.stage();
    let states: Family<Labels, Gauge> = Family::default();
    for state in [State::Starting, State::Loading, State::Ready, State::Draining, State::Failed] {
        states.get_or_create(&vec![("state", state.name().to_owned())]).set(i64::from(state == stage.state()));
    }
    registry.register("skipd_state", "1 for the state the daemon is in", states);
    share(registry, "skipd_load_progress", "Share of the model loaded", f64::from(stage.progress()));
    share(registry, "skipd_uptime_seconds", "Since the process started", daemon.started.elapsed().as_secs_f64());
    let build: Family<Labels, Gauge> = Family::default();
    build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
    registry.register("skipd_build_info", "Always 1", build);
    let own = activity::process();
    share(registry, "process_resident_memory_bytes", "Memory of the process, mapped files among it", own.resident_bytes as f64);
    share(registry, "process_open_fds", "Open file descriptors", f64::from(own.descriptors));
    share(registry, "process_threads", "Threads", f64::from(own.threads));
}

fn clocks(registry: &mut Registry, daemon: &Daemon) {
    let Some(status) = daemon.clocks.status() else { return };
    let states: Family<Labels, Gauge> = Family::default();
    for state in ClockState::ALL {
        states.get_or_create(&vec![("state", state.name().to_owned())]).set(i64::from(state == status.state));
    }
    registry.register("skipd_clock_state", "1 for the state the board's clocks are in", states);
    let info: Family<Labels, Gauge> = Family::default();
    info.get_or_create(&vec![("profile", status.profile.unwrap_or_else(|| "none".into()))]).set(1);
    registry.register("skipd_clock_profile_info", "1 for the clock profile that is applied", info);
    total(registry, "skipd_clock_throttles", "Times that pinned clocks became throttled", status.throttles as f64);
    share(
        registry,
        "skipd_background_held",
        "1 while background requests are held back for held down clocks",
        f64::from(u8::from(status.background_held)),
    );
}

fn requests(registry: &mut Registry, status: &Status) {
    share(registry, "vllm:num_requests_running", "Requests being computed", f64::from(status.running));
    share(registry, "vllm:num_requests_waiting", "Requests waiting for admission", f64::from(status.queued));
    let used = f64::from(status.pages_used) / f64::from(status.pages_total.max(1));
    share(registry, "vllm:kv_cache_usage_perc", "Share of cache pages reserved, 1 is all", used);
    share(registry, "skipd_cached_pages", "Free cache pages that hold beginnings of earlier prompts", f64::from(status.pages_cached));
    share(registry, "skipd_pinned_pages", "Cache pages that pinned prefixes hold", f64::from(status.pages_pinned));
    let reuse = status.reuse;
    total(registry, "vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache", reuse.asked as f64);
    total(registry, "vllm:prefix_cache_hits", "Prompt tokens taken from it, not computed", reuse.reused as f64);
    total(registry, "vllm:prompt_tokens", "Prompt tokens computed", status.prompt_tokens as f64);
    total(registry, "vllm:generation_tokens", "Tokens drawn", status.generated_tokens as f64);
    total(registry, "skipd_steps", "Engine steps", status.steps as f64);
    total(registry, "skipd_step_seconds", "Time in engine steps", status.step_seconds);
    total(registry, "skipd_prefill_step_seconds", "Of it, in steps with prompt tokens", status.prefill_step_seconds);
    total(
        registry,
        "skipd_attention_seconds",
        "Time in attention, where measured (CUDA: steps with prompt tokens)",
        status.attention_seconds,
    );
    total(registry, "skipd_background_step_seconds", "Time in steps of the background class", status.background_step_seconds);
    total(
        registry,
        "skipd_background_rest_seconds",
        "Time that background work alone rested for its share",
        status.background_rest_seconds,
    );
    let waits: Family<Labels, Counter> = Family::default();
    for (steps, count) in ["0", "1", "2", "more"].into_iter().zip(status.control_waits) {
        waits.get_or_create(&vec![("steps", steps.to_owned())]).inc_by(count);
    }
    registry.register("skipd_control_waits", "Control requests by the steps of lower classes before their first", waits);
    total(registry, "skipd_decode_steps", "Steps of decode alone", status.decode_steps as f64);
    total(registry, "skipd_decode_host_seconds", "The engine's own time in those, beside the device's", status.decode_host_seconds);
}

fn attention(registry: &mut Registry, status: &Status) {
    let (votes, skipped, bytes) = <(Family<Labels, Total>, Family<Labels, Total>, Family<Labels, Total>)>::default();
    for phase in Phase::ALL {
        let counters = status.phase(phase);
        let label = vec![("phase", phase.name().to_owned())];
        votes.get_or_create(&label).inc_by(counters.votes as f64);
        skipped.get_or_create(&label).inc_by(counters.skipped as f64);
        bytes.get_or_create(&label).inc_by(counters.bytes_not_read as f64);
    }
    registry.register("skipd_votes", "Tiles (prefill) and runs (decode) voted on", votes);
    registry.register("skipd_skipped", "Tiles (prefill) and runs (decode) skipped", skipped);
    registry.register("skipd_bytes_not_read", "Bytes of the cache that skipping left unread", bytes);
}

fn tables(registry: &mut Registry, daemon: &Daemon) {
    let Ok(show) = daemon.show_tables() else { return };
    let versions: Family<Labels, Gauge> = Family::default();
    let info: Family<Labels, Gauge> = Family::default();
    for phase in Phase::ALL {
        let table = show.phase(phase);
        let name = phase.name().to_owned();
        versions.get_or_create(&vec![("phase", name.clone())]).set(i64::try_from(table.version).unwrap_or(i64::MAX));
        let labels =
            vec![("phase", name), ("table", table.name().unwrap_or_else(|| "none".into())), ("decided_by", table.decided_by.name().into())];
        info.get_or_create(&labels).set(1);
    }
    let drift: Family<Labels, Gauge> = Family::default();
    let alarms = daemon.model().map(|model| model.tables.alarms()).unwrap_or_default();
    for phase in Phase::ALL {
        let stands = alarms.iter().any(|(of, _)| *of == phase);
        drift.get_or_create(&vec![("phase", phase.name().to_owned())]).set(i64::from(stands));
    }
    registry.register("skipd_drift_alarm", "1 while a table skips far more or less than its tier stands for", drift);
    registry.register("skipd_table_version", "Changes of the table in force since the start", versions);
    registry.register("skipd_table_info", "1 for the table in force", info);
}

fn share(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Share::default();
    gauge.set(value);
    register(registry, name, help, gauge);
}

fn total(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let counter = Total::default();
    counter.inc_by(value);
    register(registry, name, help, counter);
}

/// A unit is told where the name ends in one.
fn register(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    for (ending, unit) in [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)] {
        if let Some(short) = name.strip_suffix(ending) {
            return registry.register_with_unit(short, help, unit, metric);
        }
    }
    registry.register(name, help, metric);
}

//! The daemon's status as every interface shows it.

use crate::config::KvChoice;
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use skip_client::protocol::status::TableNames;
use skip_client::protocol::{
    Availability, AvailabilityState, BackendStatus, BackgroundStatus, CacheStatus, LoadStatus, MemoryStatus, ModelStatus, Phase,
    QueueStatus, ReadStatus, Shares, Status,
};
use skip_engine::stats;

/// A snapshot; never waits for the engine.
pub fn report(daemon: &Daemon) -> Status {
    let stage = daemon.life.stage();
    let engine = daemon.model().map(|model| (model, model.engine.status()));
    let mut status = Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: stage.state(),
        availability: availability(daemon, &stage, engine.as_ref().map(|(_, status)| status)),
        load_progress: f64::from(stage.progress()),
        uptime_ms: u64::try_from(daemon.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        startup_ms: daemon.ready_after().map(|seconds| short(seconds * 1e3)),
        clocks: daemon.clocks.status(),
        ..Status::default()
    };
    status.queue.limit = daemon.config.queue as u32;
    if let Some((model, engine)) = engine {
        fill(&mut status, daemon, model, &engine);
    }
    status
}

/// In six decimals: of seventeen digits, reading JSON may change the last, and then the bus says another number.
fn short(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Whether a request sent now would be served well.
pub fn availability(daemon: &Daemon, stage: &Stage, engine: Option<&stats::Status>) -> Availability {
    if let Some(reason) = stage.reason() {
        return Availability { state: AvailabilityState::Unavailable, reason };
    }
    let limit = daemon.config.queue as u32;
    match engine {
        Some(engine) if engine.queued.saturating_sub(engine.held) >= limit => {
            Availability { state: AvailabilityState::Degraded, reason: format!("the queue of {limit} requests is full") }
        }
        _ => match daemon.model().and_then(|model| model.degraded.clone()) {
            Some(reason) => Availability { state: AvailabilityState::Degraded, reason },
            None => Availability { state: AvailabilityState::Available, reason: String::new() },
        },
    }
}

fn fill(status: &mut Status, daemon: &Daemon, model: &Model, engine: &stats::Status) {
    let info = model.engine.model();
    status.model = Some(ModelStatus {
        name: model.name.clone(),
        architecture: model.family.to_owned(),
        context_length: engine.context,
        vocabulary: info.vocabulary,
        layers: model.layers,
        checkpoint_hash: model.tables.checkpoint_hash(),
    });
    status.backend = engine.backend.as_ref().map(|backend| BackendStatus {
        name: backend.name.to_owned(),
        reason: format!("{}; {}", backend.device, model.backend_reason),
        kernel_set: std::iter::once(&backend.kernel_set).chain(&model.kernel_notes).cloned().collect::<Vec<_>>().join("; "),
        threads: u32::try_from(backend.parallelism).ok(),
        kv_format: match daemon.config.kv {
            KvChoice::Fp16 => "fp16".into(),
            KvChoice::Bf16 => "bf16".into(),
        },
    });
    let show = model.tables.show();
    status.tables = TableNames { prefill: show.prefill.name(), decode: show.decode.name() };
    status.alarms = model.tables.alarms().into_iter().map(|(phase, alarm)| format!("{phase}: {alarm}")).collect();
    status.warnings = model.tables.warnings();
    let share = |phase| {
        let counters = engine.phase(phase);
        (counters.votes > 0).then(|| short(counters.share()))
    };
    status.measured_sparsity = Shares { prefill: share(Phase::Prefill), decode: share(Phase::Decode) };
    status.queue = QueueStatus { running: engine.running, waiting: engine.queued, limit: status.queue.limit };
    status.cache = CacheStatus {
        pages: engine.pages_total,
        free: engine.pages_total.saturating_sub(engine.pages_used),
        cached: engine.pages_cached,
        pinned: engine.pages_pinned,
    };
    status.background = BackgroundStatus {
        duty_percent: daemon.config.background_duty,
        step_seconds: short(engine.background_step_seconds),
        rest_seconds: short(engine.background_rest_seconds),
    };
    status.load = engine.loaded.as_ref().map(|loaded| LoadStatus {
        bytes: loaded.bytes,
        seconds: short(loaded.seconds),
        reads: loaded.reads.map(|reads| ReadStatus { bytes: reads.bytes, seconds: short(reads.seconds), direct: reads.direct }),
    });
    status.memory = engine.loaded.as_ref().and_then(|loaded| loaded.ledger.as_ref()).map(|ledger| MemoryStatus {
        counted: ledger.entries.iter().map(|(what, bytes)| ((*what).to_owned(), *bytes)).collect(),
        total: ledger.total(),
        free_before: ledger.free,
        source: ledger.source.to_string(),
    });
}

//! What Prometheus sees. Names that vLLM also has are spelt as it spells them, so that its dashboards work; the rest begins with `skipd_`.

mod scrape;
#[cfg(test)]
mod tests;

pub use scrape::render;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use skip_client::ErrorKind;
use skip_engine::handle::Usage;
use std::time::Instant;

/// Label name and value pairs.
type Labels = Vec<(&'static str, String)>;

/// Seconds, from a cached short prompt to the longest one on a small board.
const LATENCY: [f64; 16] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
/// Seconds a token.
const PER_TOKEN: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0];

/// What is counted as it happens; everything else is read from the engine at a scrape.
#[derive(Debug)]
pub struct Metrics {
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    refused: Family<Labels, Counter>,
    finished: Family<Labels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let latency = || Histogram::new(LATENCY);
        Self {
            first_token: latency(),
            per_token: Histogram::new(PER_TOKEN),
            whole: latency(),
            queue: latency(),
            prefill: latency(),
            decode: latency(),
            refused: Family::default(),
            finished: Family::default(),
        }
    }
}

impl Metrics {
    /// A request was not taken.
    pub fn refused(&self, kind: ErrorKind) {
        self.refused.get_or_create(&vec![("code", kind.code().to_owned())]).inc();
    }
}

/// The clock of one request.
#[derive(Debug)]
pub struct Timing {
    arrived: Instant,
    first: Option<Instant>,
}

impl From<Instant> for Timing {
    fn from(arrived: Instant) -> Self {
        Self { arrived, first: None }
    }
}

impl Timing {
    /// A token came.
    pub fn token(&mut self, metrics: &Metrics, now: Instant) {
        if self.first.is_none() {
            self.first = Some(now);
            metrics.first_token.observe(now.duration_since(self.arrived).as_secs_f64());
        }
    }

    /// The request ended; `reason` is the protocol's word, or vLLM's `abort` where its client was gone.
    pub fn end(&self, metrics: &Metrics, now: Instant, usage: &Usage, reason: &'static str) {
        metrics.finished.get_or_create(&vec![("finished_reason", reason.to_owned())]).inc();
        metrics.whole.observe(now.duration_since(self.arrived).as_secs_f64());
        metrics.queue.observe(usage.queue_time.as_secs_f64());
        metrics.prefill.observe(usage.prefill_time.as_secs_f64());
        metrics.decode.observe(usage.decode_time.as_secs_f64());
        if usage.completion_tokens > 1 {
            metrics.per_token.observe(usage.decode_time.as_secs_f64() / f64::from(usage.completion_tokens - 1));
        }
    }
}

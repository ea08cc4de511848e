//! The engine's counts in the protocol's words.

use skip_client::protocol::tables::short_hash;
use skip_client::protocol::{DecodeUsage, PrefillUsage, SkipdUsage, Timings, Usage};
use skip_engine::handle::{self, NamedTable};
use std::sync::Arc;
use std::time::Duration;

/// `completion_tokens` are those the service took: at a stop string the engine may have drawn more, which nobody sees.
pub fn report(engine: &handle::Usage, completion_tokens: u32) -> Usage {
    Usage {
        prompt_tokens: engine.prompt_tokens,
        completion_tokens,
        total_tokens: engine.prompt_tokens + completion_tokens,
        skipd: SkipdUsage {
            prefill: PrefillUsage {
                table: engine.prefill.table.as_ref().map(table_name),
                row: engine.prefill.row,
                votes: engine.prefill.counters.votes,
                skipped: engine.prefill.counters.skipped,
            },
            decode: DecodeUsage {
                table: engine.decode.table.as_ref().map(table_name),
                votes: engine.decode.counters.votes,
                skipped: engine.decode.counters.skipped,
            },
            reused_tokens: engine.reused_tokens,
            timings_ms: Timings {
                queue: milliseconds(engine.queue_time),
                prefill: milliseconds(engine.prefill_time),
                decode: milliseconds(engine.decode_time),
            },
        },
    }
}

/// Its tier, else the beginning of its hash.
pub fn table_name(table: &Arc<NamedTable>) -> String {
    table.tier.clone().unwrap_or_else(|| short_hash(&table.hash))
}

/// To the microsecond, which is all that anybody reads.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

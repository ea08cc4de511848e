//! What the log says of a generation: one line when it ends, with counts and times, and nothing of what was asked or answered.

use skip_client::protocol::Usage;
use skip_engine::handle::Priority;
use tracing::Span;

/// A generation in the log, in the span of the request it belongs to.
#[derive(Debug)]
pub struct Log {
    span: Span,
    uid: u32,
    class: &'static str,
    ended: bool,
}

impl Log {
    /// One that begins, in the current span.
    pub fn begin(uid: u32, priority: Priority) -> Self {
        let class = match priority {
            Priority::Background => "background",
            Priority::Interactive => "interactive",
            Priority::Control => "control",
        };
        Self { span: Span::current(), uid, class, ended: false }
    }

    /// It ended.
    pub fn end(&mut self, reason: &'static str, usage: &Usage) {
        self.ended = true;
        let (times, own) = (&usage.skipd.timings_ms, &usage.skipd);
        self.span.in_scope(|| {
            tracing::info!(
                uid = self.uid,
                class = self.class,
                reason,
                prompt_tokens = usage.prompt_tokens,
                completion_tokens = usage.completion_tokens,
                reused_tokens = own.reused_tokens,
                queue_ms = times.queue,
                prefill_ms = times.prefill,
                decode_ms = times.decode,
                prefill_skipped = own.prefill.share(),
                decode_skipped = own.decode.share(),
                "ended"
            );
        });
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if !self.ended {
            self.span.in_scope(|| tracing::info!(uid = self.uid, class = self.class, "left behind at the end of the process"));
        }
    }
}

//! A running request: read by one thread, cancelled by any.

use crate::boundary::{Out, allocated, given, guarded, out, quietly};
use crate::error::{ErrorOut, c_string};
use libc::c_char;
use skip_client::blocking::{Canceller, Generation};
use skip_client::{Error, StreamEvent};
use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

const NONE: c_int = 0;
const TEXT: c_int = 1;
const TOOL_CALL: c_int = 2;
const FINISHED: c_int = 3;
const END: c_int = 4;

/// `skipd_stream`.
#[derive(Debug)]
pub struct StreamHandle {
    // Beside the lock: cancelling waits for no reader.
    canceller: Canceller,
    reader: Mutex<Reader>,
}

#[derive(Debug)]
struct Reader {
    generation: Generation,
    event: Option<StreamEvent>,
    /// Of the last event, with a NUL behind it.
    text: Vec<u8>,
    /// Of the last event, once asked for.
    json: Option<CString>,
    reason: Option<CString>,
    usage: Option<CString>,
}

impl StreamHandle {
    pub(crate) fn new(generation: Generation) -> Self {
        let canceller = generation.canceller();
        let reader = Reader { generation, event: None, text: vec![0], json: None, reason: None, usage: None };
        Self { canceller, reader: Mutex::new(reader) }
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        // Whatever a panic left is still an event and its text.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Waits for the next event, and says what it is; the error of an early end comes with its event.
    fn next(&mut self, timeout: Option<Duration>) -> (c_int, Result<(), Error>) {
        let event = match timeout {
            None => self.generation.next(),
            Some(timeout) => match self.generation.next_within(timeout) {
                Poll::Ready(event) => event,
                Poll::Pending => return (NONE, Ok(())),
            },
        };
        self.text = vec![0];
        self.json = None;
        self.event = None;
        match event {
            None => (END, Ok(())),
            Some(Err(error)) => (END, Err(error)),
            Some(Ok(event)) => {
                let found = self.note(&event);
                self.event = Some(event);
                found
            }
        }
    }

    fn note(&mut self, event: &StreamEvent) -> (c_int, Result<(), Error>) {
        match event {
            StreamEvent::Text { text, .. } => {
                self.text = text.bytes().chain([0]).collect();
                (TEXT, Ok(()))
            }
            StreamEvent::ToolCall { .. } => (TOOL_CALL, Ok(())),
            StreamEvent::Finished { reason, usage, error } => {
                self.reason = Some(c_string(reason.name()));
                self.usage = serde_json::to_string(usage).ok().map(|usage| c_string(&usage));
                let early = reason.error_kind().map(|kind| Error::new(kind, format!("the request ended early: {reason}")));
                (FINISHED, error.clone().or(early).map_or(Ok(()), Err))
            }
            // An event of a later protocol: its JSON says what it is.
            _ => (NONE, Ok(())),
        }
    }
}

/// Waits for the next event.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_next(stream: Option<&StreamHandle>, timeout_ms: c_int, event: Out<'_, c_int>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let slot = out("event", event, END)?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let (found, result) = given("stream", stream)?.reader().next(timeout);
        *slot = found;
        result
    })
}

/// Text of the last event.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_text(stream: Option<&StreamHandle>, length: Out<'_, usize>) -> *const c_char {
    let (text, bytes) = stream.map_or((c"".as_ptr(), 0), |stream| {
        let reader = stream.reader();
        // The buffer stays where it is until the next event, for which the header asks callers to wait.
        (reader.text.as_ptr().cast(), reader.text.len() - 1)
    });
    if let Some(length) = length {
        length.write(bytes);
    }
    text
}

/// The last event as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_event(stream: Option<&StreamHandle>) -> *const c_char {
    quietly(null(), || {
        let Some(stream) = stream else { return null() };
        let reader = &mut *stream.reader();
        if reader.json.is_none() {
            reader.json = reader.event.as_ref().and_then(|event| serde_json::to_string(event).ok()).map(|json| c_string(&json));
        }
        reader.json.as_ref().map_or(null(), |json| json.as_ptr())
    })
}

/// Why the answer ended.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_reason(stream: Option<&StreamHandle>) -> *const c_char {
    stream.and_then(|stream| stream.reader().reason.as_ref().map(|reason| reason.as_ptr())).unwrap_or(null())
}

/// What it cost.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_usage(stream: Option<&StreamHandle>) -> *const c_char {
    stream.and_then(|stream| stream.reader().usage.as_ref().map(|usage| usage.as_ptr())).unwrap_or(null())
}

/// All text that is left.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_rest(
    stream: Option<&StreamHandle>,
    text: Out<'_, *mut c_char>,
    length: Out<'_, usize>,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let slot = out("text", text, null_mut())?;
        let length = length.map(|length| length.write(0));
        let mut reader = given("stream", stream)?.reader();
        let mut whole = Vec::new();
        loop {
            let (found, result) = reader.next(None);
            result?;
            match found {
                TEXT => whole.extend_from_slice(&reader.text[..reader.text.len() - 1]),
                FINISHED | END => break,
                _ => {}
            }
        }
        *slot = allocated(&whole)?;
        if let Some(length) = length {
            *length = whole.len();
        }
        Ok(())
    })
}

/// Cancels, from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_cancel(stream: Option<&StreamHandle>) {
    quietly((), || {
        if let Some(stream) = stream {
            stream.canceller.cancel();
        }
    });
}

/// Frees a stream, and cancels what still runs.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_stream_free(stream: Option<Box<StreamHandle>>) {
    quietly((), || drop(stream));
}

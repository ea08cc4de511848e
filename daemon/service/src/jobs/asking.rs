//! What jobs ask of the engine, and what it is called where there is no answer.

use crate::generation::{reason, refusal};
use skip_client::{Error, ErrorKind};
use skip_engine::ask::{AskError, background};
use skip_engine::handle::{ClientId, Request, TableSet};

/// Whose requests a job's are.
pub fn client() -> ClientId {
    ClientId(rustix::process::geteuid().as_raw())
}

/// A request under tables of its own.
pub fn request(prompt: Vec<u32>, max_tokens: u32, tables: TableSet) -> Request {
    background(client(), prompt, max_tokens, Some(tables))
}

/// Why a prompt has no answer, in the words and the class that a client would have been told.
pub fn failed(error: AskError) -> Error {
    let message = error.to_string();
    match error {
        AskError::Cancelled => cancelled(),
        AskError::Refused(refused) => refusal(refused, None),
        AskError::Ended { reason: ended, .. } => Error::new(reason(ended).error_kind().unwrap_or(ErrorKind::Internal), message),
        _ => Error::new(ErrorKind::Internal, message),
    }
}

/// The job was told to end.
pub fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "cancelled")
}

/// An error of something that ends when the job is told to: then that is why.
pub fn unless(is_cancelled: bool, error: Error) -> Error {
    if is_cancelled { cancelled() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_engine::handle::{FinishReason, SubmitError};

    #[test]
    fn a_prompt_without_an_answer_keeps_its_class() {
        let ended = |reason| failed(AskError::Ended { length: 7, reason, detail: None });
        for (error, kind) in [
            (failed(AskError::Cancelled), ErrorKind::Cancelled),
            (failed(SubmitError::CacheTooSmall { needed: 5, total: 4 }.into()), ErrorKind::CacheTooSmall),
            (failed(SubmitError::Draining.into()), ErrorKind::Draining),
            (ended(FinishReason::DeviceFault), ErrorKind::DeviceFault),
            (ended(FinishReason::Shutdown), ErrorKind::Shutdown),
            (ended(FinishReason::Error), ErrorKind::Internal),
        ] {
            assert_eq!(error.kind, kind, "{error}");
        }
    }
}

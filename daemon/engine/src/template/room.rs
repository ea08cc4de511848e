//! Stack for templates: Jinja's compiler and its values recurse as deep as a template nests them, and a stack that overflows ends the process.

use super::TemplateError;
use std::thread::{Builder, scope};

/// Enough for the deepest nesting that the longest template, or the work a rendering may take, can make. Address space: memory only where it is touched.
const STACK: usize = 1 << 30;

/// Runs work on a thread of its own and waits for it.
///
/// # Errors
/// The thread cannot be had, or it panicked.
pub(super) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    scope(|scope| {
        let thread = Builder::new().name("template".into()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| TemplateError::Render(format!("no thread to render it on: {e}")))?;
        thread.join().map_err(|_| TemplateError::Render("it broke the renderer".into()))
    })
}

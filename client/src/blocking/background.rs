//! The thread that serves a blocking client's connections, and how other threads wait for what happens on it.

use crate::protocol::error::{Error, ErrorKind};
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// One thread with a runtime; it ends when this is dropped, whichever thread drops it.
#[derive(Debug)]
pub(crate) struct Background {
    // None only within `drop`.
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).thread_name("skip-client").enable_all().build();
        let runtime = runtime.map_err(|error| Error::new(ErrorKind::Internal, format!("no thread for the client: {error}")))?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Runs a task there.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<tokio::task::AbortHandle> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(task).abort_handle())
    }

    /// Waits on this thread for a future whose sockets and timers the other thread watches.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        let Ok(output) = self.drive(future, || {
            std::thread::park();
            Ok::<(), Infallible>(())
        });
        output
    }

    /// The same until `end`; Pending: the time passed.
    pub(crate) fn wait_until<F: Future>(&self, future: F, end: Instant) -> Poll<F::Output> {
        let output = self.drive(future, || match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(()),
            left => {
                std::thread::park_timeout(left);
                Ok(())
            }
        });
        output.map_or(Poll::Pending, Poll::Ready)
    }

    /// Polls, and pauses in between until woken or until `pause` gives up.
    ///
    /// Not tokio's `block_on`, which panics on a thread that belongs to another runtime. Polled without tokio's cooperative budget, which on
    /// such a thread is refilled only between its own tasks.
    fn drive<F: Future, E>(&self, future: F, mut pause: impl FnMut() -> Result<(), E>) -> Result<F::Output, E> {
        let _context = self.runtime.as_ref().map(Runtime::enter);
        let mut future = pin!(tokio::task::unconstrained(future));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return Ok(output),
                Poll::Pending => pause()?,
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits for nothing, so that it may happen anywhere.
            runtime.shutdown_background();
        }
    }
}

/// Wakes a waiting thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

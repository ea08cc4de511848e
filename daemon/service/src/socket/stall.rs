//! A stream that fails when its peer takes nothing for too long, so that a reader who sleeps costs bounded memory and then its connection.
//! Whoever writes to it may ask to be told first, and gets a while in which a reader that comes back is told too.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};

/// What is done when a connection's peer stalls: shared by the connection and the answer on it.
#[derive(Clone, Default)]
pub struct Stall(Arc<Mutex<Option<Tell>>>);

type Tell = Box<dyn FnOnce() + Send>;

impl Stall {
    /// Calls `tell` at the next stall, in place of what was to be called before.
    pub fn then(&self, tell: impl FnOnce() + Send + 'static) {
        self.set(Some(Box::new(tell)));
    }

    /// Calls nothing: what was to be told has ended.
    pub fn clear(&self) {
        self.set(None);
    }

    /// Tells whoever wants to know; false where nobody does.
    pub fn tell(&self) -> bool {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        told.map(|tell| tell()).is_some()
    }

    fn set(&self, tell: Option<Tell>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tell;
    }
}

/// A stream that can be broken off so that its peer cannot take what it has for the whole.
pub trait Break {
    /// Makes the close a reset, where there is such a thing.
    fn break_off(&self);
}

impl Break for TcpStream {
    fn break_off(&self) {
        // A connection that is gone needs no reset.
        let _ = self.set_zero_linger();
    }
}

impl Break for UnixStream {
    /// A Unix socket has no reset: what it holds can still be read, and ends in the middle of a chunked body.
    fn break_off(&self) {}
}

/// Wraps a stream; a write that makes no progress for `limit` is an error, or where somebody was told then, for `grace` more.
pub struct StallGuard<S> {
    inner: S,
    limit: Duration,
    grace: Duration,
    stall: Stall,
    timer: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S: Break> StallGuard<S> {
    /// Guards `inner`.
    pub fn new(inner: S, limit: Duration, grace: Duration, stall: Stall) -> Self {
        Self { inner, limit, grace, stall, timer: Box::pin(tokio::time::sleep(limit)), waiting: false }
    }

    /// Starts, checks or clears the clock around one attempt to write.
    fn watch<T>(&mut self, cx: &mut Context<'_>, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.waiting = false;
            return attempt;
        }
        if !self.waiting {
            self.waiting = true;
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if !self.stall.tell() {
                self.inner.break_off();
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data")));
            }
            self.timer.as_mut().reset(Instant::now() + self.grace);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Break + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, attempt)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, attempt)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    impl Break for DuplexStream {
        fn break_off(&self) {}
    }

    fn guard(stream: DuplexStream, limit: u64, grace: u64, stall: &Stall) -> StallGuard<DuplexStream> {
        StallGuard::new(stream, Duration::from_millis(limit), Duration::from_millis(grace), stall.clone())
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_ends_the_write() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let mut guard = guard(ours, 30, 10_000, &Stall::default());
        let error = guard.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_is_slow_but_reads_is_left_alone() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut guard = guard(ours, 200, 0, &Stall::default());
        let reader = tokio::spawn(async move {
            let mut buf = [0; 8];
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                theirs.read_exact(&mut buf).await.unwrap();
            }
        });
        guard.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }

    #[tokio::test]
    async fn who_asked_is_told_once_and_a_peer_that_comes_back_in_time_gets_the_rest() {
        for comes_back in [true, false] {
            let (ours, mut theirs) = tokio::io::duplex(8);
            let stall = Stall::default();
            let (tell, told) = tokio::sync::oneshot::channel();
            stall.then(move || tell.send(()).unwrap());
            let mut guard = guard(ours, 20, if comes_back { 10_000 } else { 20 }, &stall);
            let writing = tokio::spawn(async move { guard.write_all(&[0; 64]).await.map_err(|error| error.kind()) });
            told.await.unwrap();
            if comes_back {
                theirs.read_exact(&mut [0; 64]).await.unwrap();
            }
            assert_eq!(writing.await.unwrap(), if comes_back { Ok(()) } else { Err(io::ErrorKind::TimedOut) });
            assert!(!stall.tell());
        }
    }

    #[tokio::test]
    async fn a_tcp_connection_that_is_broken_off_is_reset() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut ours, _) = listener.accept().await.unwrap();
        ours.write_all(b"half").await.unwrap();
        ours.break_off();
        drop(ours);
        let mut got = Vec::new();
        assert_eq!(theirs.read_to_end(&mut got).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

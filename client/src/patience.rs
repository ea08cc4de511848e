//! How long a client waits for a daemon that says nothing. What is answered at once has a limit; what takes as long as it takes (an answer's
//! text, a pin, a drain) is waited for as long as the daemon still answers something else.

use crate::protocol::StreamEvent;
use crate::protocol::error::{Error, ErrorKind};
use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// The limit of a client that was told none.
const USUAL: Duration = Duration::from_secs(30);
/// What a request with a deadline waits beyond it for the daemon, which says that it passed and what was done until then.
const GRACE: Duration = Duration::from_secs(5);
/// Longer waits are as good as endless; the clock can still say when this one ends.
const ENDLESS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The waits of one client, or of one request of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    limit: Option<Duration>,
    end: Option<Instant>,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(Some(USUAL))
    }
}

impl Patience {
    /// Waits for an answer so long; None is for ever.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, end: None }
    }

    /// The same for a request with a deadline, which begins now.
    pub(crate) fn until(self, deadline: Option<Duration>) -> Self {
        Self { end: deadline.map(|deadline| after(deadline.saturating_add(GRACE))), ..self }
    }

    /// Waits for what the daemon answers at once.
    pub(crate) async fn answer<T>(self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.before_end(async {
            match self.limit {
                Some(limit) => timeout(limit, work).await.unwrap_or_else(|_| Err(silent(limit))),
                None => work.await,
            }
        })
        .await
    }

    /// Waits for what takes its time. When nothing came for as long as an answer may take, `look` asks for one beside it: only silence means
    /// that the daemon hangs, for one without room refuses, and one that ended breaks the work's own connection.
    pub(crate) async fn outcome<T, L: Future>(
        self,
        work: impl Future<Output = Result<T, Error>>,
        look: impl Fn() -> L,
    ) -> Result<T, Error> {
        self.before_end(async {
            let Some(limit) = self.limit else { return work.await };
            let mut work = pin!(work);
            loop {
                if let Ok(output) = timeout(limit, work.as_mut()).await {
                    return output;
                }
                let looking = pin!(timeout(limit, look()));
                match select(work.as_mut(), looking).await {
                    Either::Left((output, _)) => return output,
                    Either::Right((Ok(_), _)) => {}
                    Either::Right((Err(_), _)) => return Err(silent(limit)),
                }
            }
        })
        .await
    }

    /// Waits so for each event of a running request.
    pub(crate) fn events<L: Future + Send>(
        self,
        events: impl Stream<Item = Result<StreamEvent, Error>> + Send,
        look: impl Fn() -> L + Send + Sync,
    ) -> impl Stream<Item = Result<StreamEvent, Error>> + Send {
        futures_util::stream::try_unfold((Box::pin(events), look), move |(mut events, look)| async move {
            let next = self.outcome(async { events.next().await.transpose() }, &look).await?;
            Ok(next.map(|event| (event, (events, look))))
        })
    }

    async fn before_end<T>(self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match self.end {
            Some(end) => timeout_at(end, work).await.unwrap_or_else(|_| Err(late())),
            None => work.await,
        }
    }
}

/// When a wait that begins now ends.
pub(crate) fn after(wait: Duration) -> Instant {
    Instant::now() + wait.min(ENDLESS)
}

/// The daemon said nothing.
pub(crate) fn silent(limit: Duration) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the daemon did not answer within {limit:?}"))
}

fn late() -> Error {
    Error::new(ErrorKind::Deadline, format!("the deadline passed, and {GRACE:?} later the daemon had not said so"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::cell::Cell;
    use std::future::{pending, ready};

    const LIMIT: Duration = Duration::from_millis(20);

    fn short() -> Patience {
        Patience::new(Some(LIMIT))
    }

    #[tokio::test]
    async fn silence_is_an_error_after_the_limit_alone() {
        assert_eq!(short().answer(pending::<Result<(), Error>>()).await.unwrap_err().kind, ErrorKind::Unreachable);
        assert_eq!(short().answer(ready(Ok(3))).await, Ok(3));
        let forever = tokio::time::timeout(3 * LIMIT, Patience::new(None).answer(pending::<Result<(), Error>>())).await;
        assert!(forever.is_err());
    }

    #[tokio::test]
    async fn long_work_is_waited_for_as_long_as_looks_are_answered() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            let hangs = looks.get() == 3;
            async move {
                if hangs {
                    pending::<()>().await
                }
            }
        };
        let work = async {
            tokio::time::sleep(LIMIT * 5 / 2).await;
            Ok(7)
        };
        assert_eq!(short().outcome(work, look).await, Ok(7));
        let seen = looks.get();
        assert!((1..=2).contains(&seen), "{seen}");
        assert_eq!(short().outcome(pending::<Result<(), Error>>(), look).await.unwrap_err().kind, ErrorKind::Unreachable);
        assert_eq!(looks.get(), 3);
    }

    #[tokio::test]
    async fn a_deadline_ends_the_wait_a_little_later() {
        let patience = Patience { end: Some(Instant::now() + LIMIT), ..Patience::default() };
        let mut events = pin!(patience.events(stream::pending(), || ready(())));
        assert_eq!(events.next().await.unwrap().unwrap_err().kind, ErrorKind::Deadline);
        assert!(events.next().await.is_none());
        let end = Patience::default().until(Some(Duration::MAX)).end.unwrap();
        assert!(end > Instant::now() + ENDLESS / 2);
    }
}

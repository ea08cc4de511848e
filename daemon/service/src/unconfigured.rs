//! A service that cannot start for want of a configuration. Whoever's call started it would wait for a bus name that never comes, until the bus
//! gives up after 25 seconds: so it takes the name, and tells everybody at once what to put right.

use crate::bus::failure::Failure;
use crate::config::Bus;
use crate::http::reply::Refusal;
use crate::{process, socket};
use axum::Router;
use futures_util::StreamExt;
use skip_client::protocol::names::BUS_NAME;
use skip_client::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use zbus::fdo::RequestNameFlags;
use zbus::message::{Flags, Type};
use zbus::{Connection, MessageStream};

/// How long it waits, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the call that started it; who starts it by hand is to see it fail.
    pub first: Duration,
    /// For the next call. A start each time would soon be one too many (`StartLimitBurst`, ten in ten minutes), and calls wait again.
    pub next: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first: Duration::from_secs(2), next: Duration::from_secs(60) }
    }
}

/// Between two words to the watchdog.
const FEED: Duration = Duration::from_secs(5);
/// How long an answer may take to its reader before the process ends.
const FLUSH: Duration = Duration::from_millis(200);

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody asks any more.
    Idle,
    /// There is a configuration now.
    Configured,
}

/// Whether a service manager started this process.
pub fn is_service() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Answers everybody, on the bus and on a socket that was handed over, until nobody asks any more, or `problem` is gone, which is looked at
/// with every call.
pub async fn answer(bus: &Bus, patience: Patience, problem: impl Fn() -> Option<String> + Send + Sync + 'static) -> End {
    let (asked, mut calls) = unbounded_channel();
    let counter = Arc::new(Counter { problem: Box::new(problem), asked });
    let mut interfaces = tokio::task::JoinSet::new();
    match on_bus(bus).await {
        Ok(Some((connection, messages))) => {
            interfaces.spawn(answer_messages(connection, messages, counter.clone()));
        }
        Ok(None) => {}
        Err(error) => eprintln!("skipd: nobody is told on the bus: {error}"),
    }
    match socket::inherited() {
        Ok(Some(listener)) => {
            interfaces.spawn(answer_http(listener, counter));
        }
        Ok(None) => drop(counter),
        Err(error) => eprintln!("skipd: nobody is told on the socket: {error}"),
    }
    let mut limit = patience.first;
    loop {
        let next = tokio::time::timeout(limit, calls.recv());
        match fed(next).await {
            Ok(Some(Some(reason))) => {
                if limit != patience.next {
                    process::notify(&[sd_notify::NotifyState::Ready]);
                }
                process::notify(&[sd_notify::NotifyState::Status(&reason)]);
                limit = patience.next;
            }
            Ok(Some(None)) => {
                tokio::time::sleep(FLUSH).await;
                return End::Configured;
            }
            Ok(None) | Err(_) => return End::Idle,
        }
    }
}

/// Waits, and tells the watchdog meanwhile that somebody is here.
async fn fed<T>(wait: impl Future<Output = T>) -> T {
    tokio::pin!(wait);
    let mut feed = tokio::time::interval(FEED);
    loop {
        tokio::select! {
            done = &mut wait => return done,
            _ = feed.tick() => process::notify(&[sd_notify::NotifyState::Watchdog]),
        }
    }
}

/// What there is to say, and that it was said.
struct Counter {
    problem: Box<dyn Fn() -> Option<String> + Send + Sync>,
    asked: UnboundedSender<Option<String>>,
}

impl Counter {
    fn refusal(&self) -> Error {
        let problem = (self.problem)();
        let words = problem.clone().unwrap_or_else(|| "skipd starts again with the configuration that is there now".into());
        // The loop that listens ends with the process.
        let _ = self.asked.send(problem);
        Error::new(ErrorKind::NotReady, words)
    }
}

/// Takes the name, and whatever is sent there.
async fn on_bus(bus: &Bus) -> zbus::Result<Option<(Connection, MessageStream)>> {
    let builder = match bus {
        Bus::None => return Ok(None),
        Bus::System => zbus::connection::Builder::system(),
        Bus::Session => zbus::connection::Builder::session(),
        Bus::Address(address) => zbus::connection::Builder::address(address.as_str()),
    };
    let connection = builder.build().await?;
    // Before the name: the call that started this process comes with it.
    let messages = MessageStream::from(&connection);
    connection.request_name_with_flags(BUS_NAME, RequestNameFlags::DO_NOT_QUEUE).await?;
    Ok(Some((connection, messages)))
}

/// Refuses every method of every object: none is there.
async fn answer_messages(connection: Connection, mut messages: MessageStream, counter: Arc<Counter>) {
    while let Some(message) = messages.next().await {
        let Ok(message) = message else { continue };
        if message.message_type() != Type::MethodCall {
            continue;
        }
        let refusal = counter.refusal();
        if !message.primary_header().flags().contains(Flags::NO_REPLY_EXPECTED)
            && let Err(error) = connection.reply_dbus_error(&message.header(), Failure::from(refusal)).await
        {
            eprintln!("skipd: an answer is lost: {error}");
        }
    }
}

/// Refuses every route.
async fn answer_http(listener: std::os::unix::net::UnixListener, counter: Arc<Counter>) {
    let router = Router::new().fallback(move || {
        let counter = counter.clone();
        async move { Refusal(counter.refusal()) }
    });
    match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("skipd: the socket is not served: {error}");
            }
        }
        Err(error) => eprintln!("skipd: the socket is not served: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::private::PrivateBus;
    use skip_client::Client;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    const PATIENCE: Patience = Patience { first: Duration::from_secs(20), next: Duration::from_millis(300) };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_call_is_told_at_once_what_is_missing_and_nobody_is_waited_for_long() {
        let bus = PrivateBus::start();
        let of = Bus::Address(bus.address());
        let serving = tokio::spawn(async move { answer(&of, PATIENCE, || Some("no model: write one down".into())).await });
        let began = Instant::now();
        let error = loop {
            // Until the name is there.
            match Client::connect_bus(&bus.address()).await.unwrap_err() {
                error if error.kind == ErrorKind::Unreachable && began.elapsed() < Duration::from_secs(10) => {}
                error => break error,
            }
        };
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::NotReady, "no model: write one down"));
        let connection = zbus::connection::Builder::address(bus.address().as_str()).build().await.unwrap();
        for (path, interface, method) in
            [("/", "org.freedesktop.DBus.Introspectable", "Introspect"), ("/org/skipd/Skipd1", "org.skipd.Skipd1.Manager", "Drain")]
        {
            let error = connection.call_method(Some(BUS_NAME), path, Some(interface), method, &()).await.unwrap_err();
            assert!(error.to_string().contains("no model: write one down"), "{error}");
        }
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap(), End::Idle);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_ends_where_nobody_asks_and_where_there_is_a_configuration_now() {
        let bus = PrivateBus::start();
        let of = Bus::Address(bus.address());
        let short = Patience { first: Duration::from_millis(50), ..PATIENCE };
        assert_eq!(answer(&of, short, || Some("x".into())).await, End::Idle);
        assert_eq!(answer(&Bus::None, short, || Some("x".into())).await, End::Idle);

        let (written, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (look, asked) = (written.clone(), seen.clone());
        let serving = tokio::spawn(async move {
            let patience = Patience { next: Duration::from_secs(20), ..PATIENCE };
            answer(&of, patience, move || {
                asked.store(true, Ordering::SeqCst);
                (!look.load(Ordering::SeqCst)).then(|| "no model".into())
            })
            .await
        });
        while !seen.load(Ordering::SeqCst) {
            assert!(Client::connect_bus(&bus.address()).await.is_err());
        }
        written.store(true, Ordering::SeqCst);
        let error = Client::connect_bus(&bus.address()).await.unwrap_err();
        assert!(error.message.contains("starts again"), "{error}");
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap(), End::Configured);
    }
}

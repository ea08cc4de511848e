//! The process from start to end: socket, bus, model, and a stop that tells everybody within seconds.

use crate::bus::{self, JoinError};
use crate::config::{Config, Listen};
use crate::lifecycle::Stage;
use crate::load::{self, LoadError};
use crate::state::{Daemon, Model};
use crate::state_lock::{Held, StateLock};
use crate::{http, profile, socket, update, watchdog};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long answers may take to reach their readers after the engine has ended.
const FLUSH: Duration = Duration::from_secs(1);
/// How long a daemon without a model still says why.
const FAILURE_SHOWN: Duration = Duration::from_millis(500);

/// Why the process ended other than by being told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The socket cannot be served.
    #[error(transparent)]
    Socket(#[from] socket::BindError),
    /// Another daemon has the state folder.
    #[error(transparent)]
    State(#[from] Held),
    /// The bus that was asked for cannot be joined.
    #[error(transparent)]
    Bus(#[from] JoinError),
    /// The system refused something basic.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
    /// No model, or a broken one.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl RunError {
    /// The process's exit code: 3 the model, 4 the interfaces or the state folder, 5 a device that failed while serving, 1 the rest. (2 is wrong usage.)
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Load(LoadError::Device(_)) => 5,
            RunError::Load(_) => 3,
            RunError::Socket(_) | RunError::State(_) | RunError::Bus(_) => 4,
            RunError::System(..) => 1,
        }
    }
}

/// Runs until a signal, or until there is no model. `open` reads the model; `started` is when the process began.
pub async fn run<F>(config: Config, started: Instant, open: F) -> Result<(), RunError>
where
    F: FnOnce(&Daemon) -> Result<Model, LoadError> + Send + 'static,
{
    let mut signals = Signals::new()?;
    let (listener, socket_file) = match socket::inherited()? {
        Some(listener) => (listener, None),
        None => {
            let (listener, file) = socket::bind(&config.socket)?;
            (listener, Some(file))
        }
    };
    let _state = StateLock::take(&config.state_dir)?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(|e| RunError::System("watch the socket", e))?;
    let tcp = match &config.listen {
        Some(listen) => Some(listen_on(listen).await?),
        None => None,
    };
    let daemon = Arc::new(Daemon::new(config, started));
    let bus = tokio::select! {
        joined = join_bus(&daemon) => joined?,
        // A bus that takes connections and says nothing must not keep the process.
        () = signals.next() => return Ok(()),
    };
    tokio::spawn(watchdog::feed(daemon.clone()));
    tokio::spawn(profile::follow(daemon.clone()));
    let mut model = tokio::spawn(load::run(daemon.clone(), open));
    let (stop, stopping) = watch::channel(false);
    let mut bus = tokio::spawn(stay_on_bus(bus, stopping.clone()));
    let mut server = tokio::spawn(http::serve(daemon.clone(), listener, tcp, http::router(daemon.clone()), stopping));
    tracing::info!(socket = %daemon.config.socket.display(), "answering");
    notify(&[sd_notify::NotifyState::Ready]);
    tokio::spawn(announce(daemon.clone()));
    tokio::spawn(update::at_start(daemon.clone()));

    let ended = tokio::select! {
        () = signals.next() => None,
        ended = &mut model => Some(ended.unwrap_or_else(|panic| Err(LoadError::Engine(panic.to_string())))),
    };
    let result = match ended {
        None => Ok(()),
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => {
            // Those who wait for /ready are told before the socket goes away.
            interruptible(&mut signals, tokio::time::sleep(FAILURE_SHOWN)).await;
            Err(error.into())
        }
    };
    notify(&[sd_notify::NotifyState::Stopping]);
    drop(socket_file);
    tokio::select! {
        () = shut_down(&daemon, &stop, [&mut server, &mut bus]) => tracing::info!("stopped"),
        () = signals.next() => tracing::warn!("second signal: leaving at once"),
    }
    result
}

/// Takes the TCP address; what it became is logged, as port 0 is any.
async fn listen_on(listen: &Listen) -> Result<http::Tcp, RunError> {
    let failed = |source| socket::BindError::Address { address: listen.address, source };
    let listener = tokio::net::TcpListener::bind(listen.address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, "answering over TCP to holders of the key");
    Ok(http::Tcp::new(listener, listen.key.clone()))
}

/// Drains for as long as configured, then ends what still runs, and lets the answers out.
async fn shut_down(daemon: &Daemon, stop: &watch::Sender<bool>, interfaces: [&mut JoinHandle<()>; 2]) {
    daemon.life.advance(Stage::Draining);
    stop.send_replace(true);
    if let Some(model) = daemon.model() {
        let engine = &model.engine;
        let loaded = daemon.ready_after().is_some();
        if loaded && tokio::time::timeout(daemon.config.drain, engine.drain()).await.is_err() {
            tracing::info!("requests still run after {:?}: ending them", daemon.config.drain);
        }
        engine.shutdown();
        if loaded && tokio::time::timeout(FLUSH, engine.stopped()).await.is_err() {
            tracing::warn!("the engine does not stop; leaving it behind");
        }
    }
    if tokio::time::timeout(FLUSH, futures_util::future::join_all(interfaces)).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

/// Joins the bus. One that was asked for must be there; without being asked, the system bus is joined where there is one.
async fn join_bus(daemon: &Arc<Daemon>) -> Result<Option<bus::Joined>, JoinError> {
    bus::join(daemon).await.or_else(|error| {
        if daemon.config.bus_required {
            return Err(error);
        }
        tracing::warn!("serving the socket alone: {error}");
        Ok(None)
    })
}

async fn stay_on_bus(bus: Option<bus::Joined>, stopping: watch::Receiver<bool>) {
    if let Some(bus) = bus {
        bus.stay(stopping).await;
    }
}

/// Waits, or not, when a signal comes.
async fn interruptible(signals: &mut Signals, wait: impl Future<Output = ()>) {
    tokio::select! {
        () = wait => {}
        () = signals.next() => {}
    }
}

/// SIGTERM and SIGINT, which mean the same.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, RunError> {
        let listen = |kind| signal(kind).map_err(|e| RunError::System("listen for signals", e));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Keeps systemd's status line in step with what the daemon is doing.
async fn announce(daemon: Arc<Daemon>) {
    let mut stages = daemon.life.watch();
    let mut told = None;
    loop {
        let stage = stages.borrow_and_update().clone();
        // Progress alone is no news: it comes with every layer.
        if told != Some(stage.state()) {
            told = Some(stage.state());
            let text = stage.reason().unwrap_or_else(|| format!("serving {}", daemon.config.model_name));
            notify(&[sd_notify::NotifyState::Status(&text)]);
        }
        if stages.changed().await.is_err() {
            return;
        }
    }
}

/// Tells systemd, if it asked to be told.
pub(crate) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not told");
    }
}

//! A checkpoint's chat template, rendered in a process of its own: the template comes with the weights, and Jinja lets it ask for any amount of
//! memory and time. What it may have is bounded there by the system; one that asks for more ends with its process, and the daemon lives on.

mod child;
mod wire;
mod worker;

use child::PROBE;
pub use child::{FLAG, main as child_main};

use serde_json::Value;
use skip_engine::calls::CallForm;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use wire::{Hello, JobOf};
use worker::{End, Worker};

/// Renderings at once; each process takes some ten megabytes.
const PROCESSES: usize = 2;
/// Memory of a rendering, beside the stack that is set aside for deep templates.
const MEMORY_MIB: u64 = 768;
/// How long a rendering may take; a long conversation takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a conversation was not rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The template does not compile, or its file is not what it should be.
    #[error("{0}")]
    Template(String),
    /// The template refuses the conversation, or fails on it.
    #[error("{message}")]
    Refused {
        /// The field of the request that is at fault.
        param: String,
        /// For a person.
        message: String,
    },
    /// The template needs more than it may have.
    #[error("the chat template of {template} {how}: it may take {MEMORY_MIB} MiB and {:?}", .limit)]
    TooMuch {
        /// Its file.
        template: String,
        /// What became of its process.
        how: &'static str,
        /// How long it may take.
        limit: Duration,
    },
    /// There is no process to render it in.
    #[error("the chat template cannot be rendered: {0}")]
    Process(std::io::Error),
}

/// A template and the processes that render it.
#[derive(Debug)]
pub struct Renderer {
    program: PathBuf,
    dir: PathBuf,
    template: String,
    calls: Option<CallForm>,
    patience: Duration,
    places: [Mutex<Option<Worker>>; PROCESSES],
    /// Whose turn it is to wait where.
    turn: AtomicUsize,
}

impl Renderer {
    /// The template of a checkpoint's folder, compiled in a process of this program; None where there is none.
    ///
    /// # Errors
    /// A file is unreadable or malformed, the template does not compile or takes too much for it, or no process can be started.
    pub fn open(dir: &Path) -> Result<Option<Self>, RenderError> {
        // This program itself, also after its file was replaced.
        Self::open_with(Path::new("/proc/self/exe"), dir, PATIENCE)
    }

    /// The same with the program that runs [`child_main`], and another limit of time.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(program: &Path, dir: &Path, patience: Duration) -> Result<Option<Self>, RenderError> {
        let (program, dir) = (program.to_owned(), dir.to_owned());
        // Until the process has said which file it is.
        let template = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut renderer = Self { program, dir, template, calls: None, patience, places: Default::default(), turn: AtomicUsize::new(0) };
        // A template that takes too much for any conversation has no calls; that it takes too much, whoever chats is told.
        let (worker, hello) = match renderer.start(true) {
            Err(RenderError::TooMuch { .. }) => renderer.start(false)?,
            started => started?,
        };
        let Hello::Ready { template, calls } = hello else { return Ok(None) };
        (renderer.template, renderer.calls) = (template, calls);
        renderer.places[0] = Mutex::new(Some(worker));
        Ok(Some(renderer))
    }

    /// The file the template is in.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// How it has functions called; None where it tells the model of none, or its form is not known.
    pub fn calls(&self) -> Option<&CallForm> {
        self.calls.as_ref()
    }

    /// Renders messages, and tools if there are any, as a template reads them, up to where the answer begins. Blocks for as long as it takes.
    ///
    /// # Errors
    /// The template refuses the conversation, fails, or takes too much.
    pub fn render(&self, messages: &[Value], tools: &[Value]) -> Result<String, RenderError> {
        let mut place = self.place();
        let mut worker = match place.take().and_then(Worker::alive) {
            Some(worker) => worker,
            None => self.start(false)?.0,
        };
        let answer = worker.render(&JobOf { messages, tools }, self.patience).map_err(|end| self.ended(end));
        // One that failed is ended with this, and the next rendering starts another.
        if matches!(answer, Ok(_) | Err(RenderError::Refused { .. })) {
            *place = Some(worker);
        }
        answer
    }

    /// A process that is free, or the one that will be.
    fn place(&self) -> MutexGuard<'_, Option<Worker>> {
        for place in &self.places {
            match place.try_lock() {
                Ok(free) => return free,
                Err(TryLockError::Poisoned(free)) => return free.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.places[turn % PROCESSES].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, probe: bool) -> Result<(Worker, Hello), RenderError> {
        let mut args = vec![OsString::from(FLAG), self.dir.clone().into_os_string()];
        args.extend(probe.then(|| PROBE.into()));
        let mut worker = Worker::start(&self.program, &args).map_err(RenderError::Process)?;
        match worker.hello(self.patience).map_err(|end| self.ended(end))? {
            Hello::Failed { reason } => Err(RenderError::Template(reason)),
            hello => Ok((worker, hello)),
        }
    }

    fn ended(&self, end: End) -> RenderError {
        let too_much = |how| RenderError::TooMuch { template: self.template.clone(), how, limit: self.patience };
        match end {
            End::Refused { param, message } => RenderError::Refused { param, message },
            End::Gone => too_much("ended its process"),
            End::Late => too_much("did not end"),
        }
    }
}

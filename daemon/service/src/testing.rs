//! Stand-ins for tests: bytes as tokens, and an engine whose model says the alphabet.

use crate::config::{Config, Settings};
use crate::faults::Rung;
use crate::forms::Forms;
use crate::load::LoadError;
use crate::peer::Peer;
use crate::profile::{Clocks, Units};
use crate::state::{Daemon, Model, SamplingDefaults};
use crate::tables::{OnDrift, Opened};
use crate::text::TextModel;
use futures_util::future::BoxFuture;
use skip_client::Error;
use skip_client::protocol::{ChatMessage, Tool};
use skip_engine::calls::CallForm;
use skip_engine::detokenize::TokenText;
use skip_engine::engine::{CacheSize, ModelInfo, StepModel};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::attention::SkipCounters;
use skip_kernels::backend::{Activation, SeqStep, StepReport, TableSlot};
use skip_kernels::cuda::Activations;
use skip_kernels::cuda::qualify::Needs;
use skip_kernels::sampling::Sampled;
use skip_kernels::{BackendInfo, KernelError, KvFormat, Phase, ScaleTable};
use skip_platform::{Board, Profiles, StateFile};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A token is a byte; 0 ends an answer, 0 and 1 are special. Functions are called in this form.
pub struct ByteText {
    form: CallForm,
}

impl Default for ByteText {
    fn default() -> Self {
        Self { form: CallForm::hermes() }
    }
}

impl TextModel for ByteText {
    fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_chat(&self, messages: &[ChatMessage], tools: &[Tool]) -> Result<Vec<u32>, Error> {
        let tools: String = tools.iter().map(|tool| format!("{}\n", tool.name())).collect();
        let rendered: String = messages.iter().map(|m| format!("{}:{}\n", m.role, m.content.0)).collect();
        self.encode(&(tools + &rendered))
    }

    fn calls(&self) -> Option<&CallForm> {
        Some(&self.form)
    }

    fn control_token(&self, written: &str) -> Option<u32> {
        // Written as they are, in one byte.
        written.bytes().map(u32::from).find(|&id| written.len() == 1 && self.is_special(id))
    }

    fn tokens(&self) -> usize {
        256
    }
}

impl TokenText for ByteText {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        Cow::Owned(vec![id as u8])
    }

    fn is_special(&self, id: u32) -> bool {
        id < 2
    }
}

/// Says its script and ends, or without one a, b, c … by position in the answer's sequence; or where it may not, the first character that it may.
/// Every step takes `step`.
#[derive(Default)]
struct Alphabet {
    step: Duration,
    script: Option<&'static str>,
    /// Tokens of the prompt it answers.
    prompt: usize,
    gave: StepReport,
}

impl StepModel for Alphabet {
    fn backend(&self) -> BackendInfo {
        BackendInfo { name: "cpu", device: "a test".into(), kernel_set: "none".into(), parallelism: 1 }
    }

    fn set_table(&mut self, _slot: TableSlot, _table: &ScaleTable) -> Result<(), KernelError> {
        Ok(())
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        let end = Instant::now() + self.step;
        while Instant::now() < end {
            if interrupted() {
                return Err(KernelError::Aborted);
            }
            std::thread::sleep(Duration::from_micros(200).min(self.step));
        }
        // A script is for one request at a time.
        self.prompt = seqs.iter().find(|seq| seq.phase == Phase::Prefill).map_or(self.prompt, |seq| seq.final_len);
        let (script, prompt) = (self.script, self.prompt);
        self.gave.sampled = seqs
            .iter()
            .map(|seq| {
                seq.sample.map(|params| {
                    let at = seq.start + seq.tokens.len();
                    let letter = match script {
                        None => b'a' + at as u8 % 26,
                        Some(script) => script.as_bytes().get(at - prompt).copied().unwrap_or(0),
                    };
                    let top = (0..params.logprobs.unwrap_or(0)).map(|n| (u32::from(b'a' + n), -1.0 - f32::from(n))).collect();
                    let edits = params.edits.as_deref();
                    let may = |&token: &u32| edits.is_none_or(|edits| edits.allows(token as usize));
                    let token = [u32::from(letter)].into_iter().chain(33..256).chain(0..33).find(may).unwrap_or(u32::MAX);
                    Sampled { token, logprob: params.logprobs.map(|_| -0.25), top }
                })
            })
            .collect();
        self.gave.counters = vec![SkipCounters::default(); seqs.len()];
        Ok(())
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        *report = std::mem::take(&mut self.gave);
        Ok(())
    }
}

/// A model of the alphabet whose cache has eight pages beyond one request of full context, four waiting places, and steps of this length.
pub fn alphabet(step: Duration) -> Model {
    model(engine(move || Ok(Alphabet { step, ..Alphabet::default() })), ByteText::default())
}

/// The same model, which says these bytes, a token each, and ends.
pub fn says(script: &'static str) -> Model {
    model(engine(move || Ok(Alphabet { script: Some(script), ..Alphabet::default() })), ByteText::default())
}

/// What a model may say, a stop string, and what is shown of it: signs of several characters, of characters of several bytes. A stop string and
/// the text before it begin alike.
pub const SCRIPTS: [(&str, Option<&str>, &str); 7] = [
    ("a 👨‍👩‍👧‍👦 and 👩🏽‍🚒!", None, "a 👨‍👩‍👧‍👦 and 👩🏽‍🚒!"),
    ("🇩🇪🇫🇷🇯🇵", Some("🇫🇷"), "🇩🇪"),
    ("👨‍👩‍👧 👨‍👩‍👦 x", Some("👨‍👩‍👦"), "👨‍👩‍👧 "),
    ("👍🏻👍🏿", Some("👍🏿"), "👍🏻"),
    ("日本語の文章。", Some("の文"), "日本語"),
    ("e\u{301}a\u{308} é.", Some("é"), "e\u{301}a\u{308} "),
    ("नमस्ते, 각", None, "नमस्ते, 각"),
];

/// Tokens that a script takes to its end, the one that ends it among them.
pub fn tokens_of(stop: Option<&str>, shown: &str) -> usize {
    shown.len() + stop.map_or(1, str::len)
}

/// An engine whose device refuses the model.
pub fn refused(error: fn() -> KernelError) -> EngineHandle {
    engine(move || Err(error().into()))
}

/// An engine that says the alphabet, for as long as nobody asks.
pub fn idle() -> EngineHandle {
    engine(|| Ok(Alphabet::default()))
}

fn engine(load: impl FnOnce() -> Result<Alphabet, skip_engine::engine::LoadError> + Send + 'static) -> EngineHandle {
    engine_with(64, load)
}

/// The same, and how many tokens an answer may be ahead of its reader.
fn engine_with(
    token_buffer: usize,
    load: impl FnOnce() -> Result<Alphabet, skip_engine::engine::LoadError> + Send + 'static,
) -> EngineHandle {
    let info = ModelInfo { name: "alphabet".into(), context: 4096, vocabulary: 256, eos: vec![0], kv_bytes_per_token: 4 };
    let options =
        EngineOptions { cache: CacheSize::Tokens(5120), queue_limit: 4, max_running: 2, token_buffer, ..EngineOptions::default() };
    Engine::start_with(options, info, move |_, _, _| load())
}

fn model(engine: EngineHandle, text: ByteText) -> Model {
    let tables = Opened::empty().serve(engine.clone(), OnDrift::Warn);
    let text = Arc::new(text);
    Model {
        name: "alphabet".into(),
        family: "test",
        layers: 1,
        voting_layers: 1,
        engine,
        forms: Forms::new(text.clone(), &[0]),
        text,
        defaults: SamplingDefaults::default(),
        tables,
        backend_reason: "a test".into(),
        degraded: None,
        kernel_notes: Vec::new(),
        rung: Rung::All,
        needs: Needs { head_dim: 64, group: 1, cache: KvFormat::Fp16, activations: Activations::Bf16, gate: Activation::Silu },
        created: SystemTime::now(),
    }
}

/// A configuration with nothing but a model and a socket.
pub fn config(socket: &Path) -> Config {
    Config::check(settings(socket)).expect("a valid configuration")
}

fn settings(socket: &Path) -> Settings {
    Settings {
        model: Some("/nowhere/alphabet".into()),
        bus: Some("none".into()),
        socket: Some(socket.to_owned()),
        drain_seconds: Some(0.5),
        max_body_mib: Some(1),
        max_connections: Some(8),
        ..Settings::default()
    }
}

/// A daemon that serves the alphabet.
pub async fn daemon(step: Duration) -> Arc<Daemon> {
    serve(config(Path::new("/nowhere/socket")), alphabet(step)).await
}

/// The same with settings changed, and steps of no length.
pub async fn daemon_of(change: impl FnOnce(&mut Settings)) -> Arc<Daemon> {
    daemon_with(Duration::ZERO, change).await
}

/// The same with settings changed, and steps of this length.
pub async fn daemon_with(step: Duration, change: impl FnOnce(&mut Settings)) -> Arc<Daemon> {
    let mut settings = settings(Path::new("/nowhere/socket"));
    change(&mut settings);
    serve(Config::check(settings).expect("a valid configuration"), alphabet(step)).await
}

/// A daemon that says these bytes.
pub async fn daemon_that_says(script: &'static str) -> Arc<Daemon> {
    serve(config(Path::new("/nowhere/socket")), says(script)).await
}

/// A daemon whose model calls functions in this form, and says these bytes where nothing else is asked of it.
pub async fn daemon_that_calls(form: CallForm, script: &'static str) -> Arc<Daemon> {
    // Its reader may fall behind by a whole answer: who reads slowly is another test's matter.
    let engine = engine_with(4096, move || Ok(Alphabet { script: Some(script), ..Alphabet::default() }));
    serve(config(Path::new("/nowhere/socket")), model(engine, ByteText { form })).await
}

async fn serve(config: Config, model: Model) -> Arc<Daemon> {
    served(Daemon::new(config, Instant::now()), model).await
}

async fn served(daemon: Daemon, model: Model) -> Arc<Daemon> {
    let daemon = Arc::new(daemon);
    tokio::spawn(crate::load::run(daemon.clone(), move |_| Ok::<_, LoadError>(model)));
    let mut stages = daemon.life.watch();
    stages.wait_for(|stage| *stage == crate::lifecycle::Stage::Ready).await.expect("the daemon lives");
    daemon
}

/// A board made of one of the trees of `platform/trees`, and a daemon on it that writes its clocks by itself.
pub struct OnBoard {
    /// The board's files.
    pub root: tempfile::TempDir,
    /// The daemon.
    pub daemon: Arc<Daemon>,
}

impl OnBoard {
    /// Serves the alphabet.
    pub async fn new(manifest: &str) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        skip_platform::lay_tree(manifest, root.path()).expect("a tree");
        let mut daemon = Daemon::new(config(Path::new("/nowhere/socket")), Instant::now());
        daemon.clocks = Clocks::of(root.path(), Arc::new(Writes(root.path().to_owned())));
        Self { daemon: served(daemon, alphabet(Duration::ZERO)).await, root }
    }

    /// A node's text.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.path().join(path)).expect("a node")
    }

    /// Changes a node.
    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.root.path().join(path), text).expect("a node");
    }
}

/// Writes clocks in the test's own process, as the unit's program would.
struct Writes(std::path::PathBuf);

impl Units for Writes {
    fn pin<'a>(&'a self, profile: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let board = Board::at(&self.0);
        let profile = Profiles::new(board.sysfs()).load(profile).expect("it was checked");
        // Whether anything was pinned shows.
        let _ = skip_platform::apply(&board, &profile, &StateFile::of_root(&self.0));
        Box::pin(async { Ok(()) })
    }

    fn release<'a>(&'a self, _: Option<&'a str>) -> BoxFuture<'a, Result<(), Error>> {
        let _ = skip_platform::restore(&Board::at(&self.0), &StateFile::of_root(&self.0));
        Box::pin(async { Ok(()) })
    }
}

/// The test's own user.
pub fn myself() -> Peer {
    Peer::User { uid: rustix::process::getuid().as_raw(), groups: Vec::new() }
}

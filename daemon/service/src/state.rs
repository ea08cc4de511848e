//! What every interface shares: configuration, who may what, the daemon's stage, and the model once it is known.

use crate::activity::Names;
use crate::config::Config;
use crate::faults::Rung;
use crate::forms::Forms;
use crate::jobs::Jobs;
use crate::lifecycle::{Lifecycle, Stage};
use crate::metrics::Metrics;
use crate::peer::Authority;
use crate::profile::Clocks;
use crate::tables::Tables;
use crate::text::TextModel;
use crate::update::Updates;
use skip_client::protocol::TableShow;
use skip_client::protocol::names::DEFAULT_MODEL;
use skip_client::{Error, ErrorKind};
use skip_engine::EngineHandle;
use skip_kernels::cuda::qualify::Needs;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

/// The daemon; one a process.
pub struct Daemon {
    /// What it was told.
    pub config: Config,
    /// Who may what.
    pub authority: Authority,
    /// What it is doing.
    pub life: Lifecycle,
    /// What it counts.
    pub metrics: Metrics,
    /// What the requests under way are called.
    pub names: Names,
    /// Long work beside serving.
    pub jobs: Jobs,
    /// Updates over the air.
    pub updates: Updates,
    /// The board's clocks.
    pub clocks: Clocks,
    /// When the process began.
    pub started: Instant,
    model: OnceLock<Arc<Model>>,
    ready_after: OnceLock<f64>,
}

/// The model: known as soon as its folder was read, usable when the daemon is ready.
pub struct Model {
    /// The name clients use.
    pub name: String,
    /// `llama`, `qwen2`, …
    pub family: &'static str,
    /// Decoder layers.
    pub layers: u32,
    /// Those of them that see everything: the others have a window, in which nothing is skipped.
    pub voting_layers: u32,
    /// What computes.
    pub engine: EngineHandle,
    /// Tokenizer and template.
    pub text: Arc<dyn TextModel>,
    /// Forms that answers are held to.
    pub(crate) forms: Forms,
    /// Sampling where a request says nothing.
    pub defaults: SamplingDefaults,
    /// Scale tables.
    pub tables: Tables,
    /// Why this backend.
    pub backend_reason: String,
    /// Why not a better one that there is, where it serves with less than it could.
    pub degraded: Option<String>,
    /// What there is to say of the kernels that may be left out.
    pub kernel_notes: Vec<String>,
    /// Where earlier faults of the device left it.
    pub rung: Rung,
    /// The CUDA kernels it would take.
    pub needs: Needs,
    /// When it was opened.
    pub created: SystemTime,
}

/// What the checkpoint's generation_config.json recommends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1 keeps all.
    pub top_p: Option<f32>,
    /// 0 drops none.
    pub min_p: Option<f32>,
}

impl Daemon {
    /// A daemon that has no model yet. `started` is when the process began.
    pub fn new(config: Config, started: Instant) -> Self {
        Self {
            authority: Authority::new(&config.group, config.control_group.as_deref()),
            clocks: Clocks::new(&config),
            config,
            life: Lifecycle::default(),
            metrics: Metrics::default(),
            names: Names::default(),
            jobs: Jobs::default(),
            updates: Updates::default(),
            started,
            model: OnceLock::new(),
            ready_after: OnceLock::new(),
        }
    }

    /// The model, if its folder has been read.
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.model.get()
    }

    /// Makes the model known; the first one stays.
    pub fn set_model(&self, model: Arc<Model>) {
        if self.model.set(model).is_err() {
            tracing::error!("a second model was loaded and is not used");
        }
    }

    /// Requests are served from now on.
    pub fn set_ready(&self) {
        self.ready_after.get_or_init(|| self.started.elapsed().as_secs_f64());
        self.life.advance(Stage::Ready);
    }

    /// Seconds from the start of the process to ready.
    pub fn ready_after(&self) -> Option<f64> {
        self.ready_after.get().copied()
    }

    /// The model, if requests may be sent to it now.
    pub fn ready_model(&self) -> Result<Arc<Model>, Error> {
        let stage = self.life.stage();
        match (&stage, self.model.get()) {
            (Stage::Ready, Some(model)) => Ok(model.clone()),
            (Stage::Draining, _) => Err(Error::new(ErrorKind::Draining, reason(&stage))),
            _ => Err(Error::new(ErrorKind::NotReady, reason(&stage))),
        }
    }

    /// The model, if it serves requests, if only those that are under way.
    pub fn serving_model(&self) -> Result<Arc<Model>, Error> {
        match (self.life.stage(), self.model.get()) {
            (Stage::Draining, Some(model)) if self.ready_after().is_some() => Ok(model.clone()),
            _ => self.ready_model(),
        }
    }

    /// The tables of a model that is known; tables can be set while it loads.
    pub fn tables(&self) -> Result<&Tables, Error> {
        match self.model.get() {
            Some(model) => Ok(&model.tables),
            None => Err(Error::new(ErrorKind::NotReady, reason(&self.life.stage()))),
        }
    }

    /// Both phases' tables.
    pub fn show_tables(&self) -> Result<TableShow, Error> {
        Ok(self.tables()?.show())
    }
}

fn reason(stage: &Stage) -> String {
    stage.reason().unwrap_or_else(|| "the model is not known yet".into())
}

impl Model {
    /// Refuses a request for another model; no name is this one's.
    pub fn check_name(&self, wanted: Option<&str>) -> Result<(), Error> {
        match wanted {
            None | Some(DEFAULT_MODEL) => Ok(()),
            Some(name) if name == self.name => Ok(()),
            Some(name) => Err(unknown_model(name, &self.name)),
        }
    }

    /// Longest prompt and answer together, tokens.
    pub fn context(&self) -> u32 {
        self.engine.status().context
    }
}

/// The refusal of a model that is not loaded.
pub fn unknown_model(name: &str, loaded: &str) -> Error {
    Error::new(ErrorKind::ModelNotFound, format!("model `{name}` is not loaded; `{loaded}` is, also as `default`")).at("model")
}

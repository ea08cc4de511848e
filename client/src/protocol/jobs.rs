//! Jobs: long work that the daemon does beside serving, started and watched by administrators.

use super::error::{Error, ErrorKind};
use super::fields::{Fields, object};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Body of `POST /skipd/v1/jobs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartJob {
    /// `qualify`, `calibrate`, `evaluate` or `price`.
    pub kind: String,
    /// Options of the kind: `CalibrateOptions`, `EvaluateOptions`, `PriceOptions`; `qualify` has none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

impl StartJob {
    /// Parses a body; the error names the field.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::new(object(body)?);
        let job = Self { kind: fields.required("kind")?, options: fields.optional("options")?.unwrap_or_default() };
        fields.end()?;
        Ok(job)
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum JobState {
    /// At work.
    #[default]
    Running,
    /// Finished; there is a result.
    Done,
    /// Given up; there is an error.
    Failed,
    /// Ended because it was told to.
    Cancelled,
}

impl JobState {
    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

/// `GET /skipd/v1/jobs/{id}`. Administrators, and whoever started it, see all of it; others see `id`, `kind`, `state`, `progress`, `eta_s` and
/// `error_code`: stage, result and error may name files and quote them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Names the job until the daemon ends.
    pub id: String,
    /// What it does.
    pub kind: String,
    /// How far it is.
    pub state: JobState,
    /// What it is at, for a person.
    #[serde(default)]
    pub stage: String,
    /// 0 to 1.
    #[serde(default)]
    pub progress: f64,
    /// Seconds until it is done, as far as can be told from those it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// What it found: for `qualify` a [`Qualification`], for `calibrate` a `Calibrated`, for `price` a
    /// `Price`, for `evaluate` `verdict` (`pass`, `fail`, `inconclusive`, or null where nothing was compared), `results` and `notes`.
    #[serde(default)]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// The class of that, one of the codes of errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

impl JobStatus {
    /// Whether a job can be called so: an id is a segment of a path on every interface.
    pub fn is_id(id: &str) -> bool {
        !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric())
    }

    /// What others than administrators and whoever started it may see.
    pub fn public(self) -> Self {
        Self { stage: String::new(), result: None, error: None, ..self }
    }

    /// Why it failed or was cancelled, as an error; None where it did not.
    pub fn failure(&self) -> Option<Error> {
        let known = self.error_code.as_deref().and_then(ErrorKind::from_code);
        let (kind, words) = match self.state {
            JobState::Failed => (ErrorKind::Internal, "the job failed"),
            JobState::Cancelled => (ErrorKind::Cancelled, "the job was cancelled"),
            _ => return None,
        };
        Some(Error::new(known.unwrap_or(kind), self.error.clone().unwrap_or_else(|| words.into())))
    }

    /// What is said where there is none of an id.
    pub fn unknown(id: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("there is no job {id}")).at("id")
    }
}

/// `GET /skipd/v1/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    /// The oldest first.
    pub jobs: Vec<JobStatus>,
}

/// What was found of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// As the reference has it.
    Right,
    /// Other than the reference, or it cannot be launched.
    Wrong,
    /// It ended in an error of the device or of the process.
    Faulted,
    /// It did not end.
    Hung,
    /// It is not in the kernel files, and is not needed: others do its work.
    Absent,
}

impl Verdict {
    /// The word on every interface.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Right => "right",
            Verdict::Wrong => "wrong",
            Verdict::Faulted => "faulted",
            Verdict::Hung => "hung",
            Verdict::Absent => "absent",
        }
    }
}

/// One kernel on its built-in case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelVerdict {
    /// Its name.
    pub kernel: String,
    /// Whether it may be used: only if right.
    pub verdict: Verdict,
    /// Shortest time on its case, where it is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micros: Option<f32>,
    /// What differs, or the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What was found of the kernels of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Qualification {
    /// Its name.
    pub device: String,
    /// Its own number.
    pub uuid: String,
    /// Compute capability.
    pub capability: String,
    /// The driver's CUDA version.
    pub driver: String,
    /// SHA-256 over the kernel files for it, with what else decides what is tried: the program's version, query heads a KV head.
    pub kernel_files: String,
    /// The kernels that were tried.
    pub kernels: Vec<KernelVerdict>,
}

impl Qualification {
    /// Kernels that must not be used.
    pub fn refused(&self) -> impl Iterator<Item = &KernelVerdict> {
        self.kernels.iter().filter(|kernel| !matches!(kernel.verdict, Verdict::Right | Verdict::Absent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_job_is_an_error_of_its_class() {
        let failed = |code: Option<&str>| JobStatus {
            state: JobState::Failed,
            error: Some("why".into()),
            error_code: code.map(str::to_owned),
            ..JobStatus::default()
        };
        for kind in [ErrorKind::InvalidRequest, ErrorKind::Internal, ErrorKind::DeviceFault, ErrorKind::Shutdown] {
            assert_eq!(failed(Some(kind.code())).failure(), Some(Error::new(kind, "why")));
        }
        assert_eq!(failed(None).failure().unwrap().kind, ErrorKind::Internal, "a daemon that does not tell");
        let cancelled = JobStatus { state: JobState::Cancelled, ..JobStatus::default() };
        assert_eq!(cancelled.failure().unwrap().kind, ErrorKind::Cancelled);
        assert_eq!(JobStatus::default().failure(), None);
    }

    #[test]
    fn others_see_how_far_a_job_is_and_not_what_it_reads_or_finds() {
        let whole = JobStatus {
            id: "3".into(),
            kind: "evaluate".into(),
            state: JobState::Failed,
            stage: "tasks/secret, dense".into(),
            progress: 0.5,
            eta_s: Some(9.0),
            result: Some(Value::Bool(true)),
            error: Some("/home/a/secret.jsonl:3: no such".into()),
            error_code: Some("invalid_request".into()),
        };
        let shown = whole.clone().public();
        assert!(!serde_json::to_string(&shown).unwrap().contains("secret"), "{shown:?}");
        assert_eq!((shown.id, shown.kind, shown.state, shown.progress, shown.eta_s), (whole.id, whole.kind, whole.state, 0.5, Some(9.0)));
        assert_eq!((shown.result, shown.error_code), (None, whole.error_code));
    }
}

//! Which CUDA kernels may be used on this device: tried once in a child process that may be lost, remembered in the state folder.
//! A kernel that is wrong, faults or never ends is never used, and whoever asks is told its name.

mod child;
mod manifest;
mod parent;
mod record;
mod wire;

pub use child::{FLAG as CHILD_FLAG, main as child_main};
pub use manifest::digest;

use parent::{Child, Limits, TryError, Trying};
use record::Record;
use skip_client::protocol::{KernelVerdict, Qualification};
use skip_kernels::cuda::qualify::Needs;
use skip_kernels::cuda::{CudaOptions, Probe, Unusable};
use std::path::Path;

/// Where a trial stands: the kernel that is being tried, and how many of how many are done.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The kernel.
    pub kernel: String,
    /// Tried so far.
    pub done: usize,
    /// All.
    pub total: usize,
}

/// Why the kernels may not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QualifyError {
    /// Kernels that did not pass.
    #[error("{}", sentence(.0))]
    Refused(Vec<KernelVerdict>),
    /// The device or the kernel files.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The kernel files are not those that were built.
    #[error("{0}")]
    Files(String),
    /// The same, as the child process found.
    #[error("{0}")]
    Child(String),
    /// The process that tries kernels does not work.
    #[error("the kernels cannot be tried: {0}")]
    NoTrial(String),
    /// Told to stop.
    #[error("qualification was cancelled")]
    Cancelled,
}

impl From<TryError> for QualifyError {
    fn from(error: TryError) -> Self {
        match error {
            TryError::Unusable(reason) => QualifyError::Child(reason),
            TryError::Process(reason) => QualifyError::NoTrial(reason),
            TryError::Cancelled => QualifyError::Cancelled,
        }
    }
}

/// Names the first few kernels with what is wrong, and counts the rest.
fn sentence(refused: &[KernelVerdict]) -> String {
    const NAMED: usize = 3;
    let one = |k: &KernelVerdict| {
        let why = k.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
        format!("{} ({}{why})", k.kernel, k.verdict.name())
    };
    let named: Vec<String> = refused.iter().take(NAMED).map(one).collect();
    let more = if refused.len() > NAMED { format!(", and {} more", refused.len() - NAMED) } else { String::new() };
    format!("kernels refused by qualification: {}{more}", named.join(", "))
}

/// What is to be tried, where, and who is told.
pub struct Request<'a> {
    /// Where the record lies.
    pub state_dir: &'a Path,
    /// Device and kernel files.
    pub options: &'a CudaOptions,
    /// The device, as found.
    pub probe: &'a Probe,
    /// The checkpoint's kernels.
    pub needs: Needs,
    /// Told of every kernel before it is tried.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Asked a few times a second.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Makes sure that every kernel the checkpoint needs is known to be right; tries those that no record tells of, or all (`anew`).
///
/// # Errors
/// [`QualifyError`].
pub fn ensure(request: Request<'_>, anew: bool) -> Result<Qualification, QualifyError> {
    let wanted: Vec<String> = request.needs.cases().into_iter().map(|case| case.name).collect();
    let found = qualify(request, &wanted, anew)?;
    let refused: Vec<KernelVerdict> = found.refused().filter(|k| wanted.contains(&k.kernel)).cloned().collect();
    if refused.is_empty() { Ok(found) } else { Err(QualifyError::Refused(refused)) }
}

/// The same, but a kernel that does not pass is a result too.
///
/// # Errors
/// [`QualifyError`], never `Refused`.
pub fn try_again(request: Request<'_>) -> Result<Qualification, QualifyError> {
    let wanted: Vec<String> = request.needs.cases().into_iter().map(|case| case.name).collect();
    qualify(request, &wanted, true)
}

fn qualify(request: Request<'_>, wanted: &[String], anew: bool) -> Result<Qualification, QualifyError> {
    let Request { state_dir, options, probe, needs, progress, cancelled } = request;
    let key = Qualification {
        device: probe.name.clone(),
        uuid: probe.uuid.clone(),
        capability: format!("{}.{}", probe.capability.0, probe.capability.1),
        driver: format!("{}.{}", probe.driver / 1000, probe.driver % 1000 / 10),
        kernel_files: digest(options, probe)?,
        kernels: Vec::new(),
    };
    let mut record = Record::read(state_dir);
    let known = |kernel: &String| !anew && record.find(&key).is_some_and(|q| q.kernels.iter().any(|k| k.kernel == *kernel));
    let kernels: Vec<String> = wanted.iter().filter(|kernel| !known(kernel)).cloned().collect();
    if kernels.is_empty() {
        return Ok(record.find(&key).cloned().unwrap_or(key));
    }
    tracing::info!(device = key.device, kernels = kernels.len(), "trying kernels");
    let began = std::time::Instant::now();
    let trying = Trying { child: &Child::own(), limits: Limits::default(), progress, cancelled };
    let verdicts = trying.all(&wire::Job::new(options, &needs, kernels))?;
    let refused = verdicts.iter().filter(|k| k.verdict != skip_client::protocol::Verdict::Right);
    refused.for_each(|k| tracing::error!(kernel = k.kernel, verdict = k.verdict.name(), reason = k.reason, "kernel refused"));
    tracing::info!(kernels = verdicts.len(), seconds = began.elapsed().as_secs_f32(), "kernels tried");
    let merged = record.merge(key, verdicts);
    if let Err(error) = record.write(state_dir) {
        tracing::warn!(%error, "what was found of the kernels is not remembered; the next start tries them again");
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::Verdict;

    #[test]
    fn refused_kernels_are_named_and_counted() {
        let kernel = |name: &str, verdict, reason: Option<&str>| KernelVerdict {
            kernel: name.into(),
            verdict,
            micros: None,
            reason: reason.map(str::to_owned),
        };
        let mut refused = vec![kernel("a", Verdict::Wrong, Some("rows: element 0")), kernel("b", Verdict::Hung, None)];
        assert_eq!(sentence(&refused), "kernels refused by qualification: a (wrong: rows: element 0), b (hung)");
        refused.extend([kernel("c", Verdict::Faulted, None), kernel("d", Verdict::Hung, None)]);
        assert!(sentence(&refused).ends_with("c (faulted), and 1 more"), "{}", sentence(&refused));
    }
}

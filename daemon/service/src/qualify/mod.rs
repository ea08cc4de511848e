//! Which CUDA kernels may be used on this device: tried once in a child process that may be lost, remembered in the state folder.
//! A kernel that is wrong, faults or never ends is never used, and whoever asks is told its name. Without one that serving needs there is no
//! CUDA; of those that may be left out, [`Selection`] says which are used.

mod child;
mod manifest;
mod parent;
mod record;
mod selection;
mod wire;

pub use child::{FLAG as CHILD_FLAG, main as child_main};
pub use manifest::digest;
pub use selection::Selection;

use parent::{Child, Limits, TryError, Trying};
use record::Record;
use skip_client::protocol::{KernelVerdict, Qualification};
use skip_kernels::cuda::qualify::{Case, Needs, Role};
use skip_kernels::cuda::{CudaOptions, Probe, Unusable};
use skip_tables::Digest;
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

/// A kernel with what is wrong with it.
fn words(k: &KernelVerdict) -> String {
    let why = k.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("{} ({}{why})", k.kernel, k.verdict.name())
}

/// Names the first few kernels with what is wrong, and counts the rest.
fn sentence(refused: &[KernelVerdict]) -> String {
    const NAMED: usize = 3;
    let named: Vec<String> = refused.iter().take(NAMED).map(words).collect();
    let more = if refused.len() > NAMED { format!(", and {} more", refused.len() - NAMED) } else { String::new() };
    format!("kernels refused by qualification (--qualify always tries them again): {}{more}", named.join(", "))
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

/// Makes sure that every kernel the checkpoint needs is known to be right, and says which of the others are used; tries those that no record
/// tells of, or all (`anew`).
///
/// # Errors
/// [`QualifyError`].
pub fn ensure(request: Request<'_>, anew: bool) -> Result<Selection, QualifyError> {
    ensure_by(&Child::own(), request, anew)
}

fn ensure_by(child: &Child, request: Request<'_>, anew: bool) -> Result<Selection, QualifyError> {
    let cases = request.needs.cases(request.probe.capability);
    let found = qualify(child, request, &names(&cases), anew)?;
    let needed = |k: &&KernelVerdict| cases.iter().any(|case| case.role == Role::Serves && case.name == k.kernel);
    let refused: Vec<KernelVerdict> = found.refused().filter(needed).cloned().collect();
    if refused.is_empty() { Ok(Selection::of(&cases, &found.kernels)) } else { Err(QualifyError::Refused(refused)) }
}

fn names(cases: &[Case]) -> Vec<String> {
    cases.iter().map(|case| case.name.clone()).collect()
}

/// The same, but a kernel that does not pass is a result too.
///
/// # Errors
/// [`QualifyError`], never `Refused`.
pub fn try_again(request: Request<'_>) -> Result<Qualification, QualifyError> {
    let wanted = names(&request.needs.cases(request.probe.capability));
    qualify(&Child::own(), request, &wanted, true)
}

fn qualify(child: &Child, request: Request<'_>, wanted: &[String], anew: bool) -> Result<Qualification, QualifyError> {
    let Request { state_dir, options, probe, needs, progress, cancelled } = request;
    let key = Qualification {
        device: probe.name.clone(),
        uuid: probe.uuid.clone(),
        capability: format!("{}.{}", probe.capability.0, probe.capability.1),
        driver: format!("{}.{}", probe.driver / 1000, probe.driver % 1000 / 10),
        kernel_files: Digest::of(format!("{} {} {}", digest(options, probe)?, env!("CARGO_PKG_VERSION"), needs.group).as_bytes())
            .to_string(),
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
    let trying = Trying { child, limits: Limits::default(), progress, cancelled };
    let verdicts = trying.all(&wire::Job::new(options, &needs, kernels))?;
    let tried = Qualification { kernels: verdicts, ..Qualification::default() };
    tried.refused().for_each(|k| tracing::error!(kernel = k.kernel, verdict = k.verdict.name(), reason = k.reason, "kernel refused"));
    tracing::info!(kernels = tried.kernels.len(), seconds = began.elapsed().as_secs_f32(), "kernels tried");
    let merged = record.merge(key, tried.kernels);
    if let Err(error) = record.write(state_dir) {
        tracing::warn!(%error, "what was found of the kernels is not remembered; the next start tries them again");
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parent::tests::child;
    use skip_client::protocol::Verdict;
    use skip_kernels::KvFormat;
    use skip_kernels::backend::Activation;
    use skip_kernels::cuda::Activations;

    const NEEDS: Needs = Needs { head_dim: 64, group: 3, cache: KvFormat::Fp16, activations: Activations::Bf16, gate: Activation::Silu };

    const HOPPER: (i32, i32) = (9, 0);

    /// A state folder, and one of kernel files that are whole and hold nothing.
    struct World {
        state: tempfile::TempDir,
        cubins: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let world = Self { state: tempfile::tempdir().unwrap(), cubins: tempfile::tempdir().unwrap() };
            world.kernels(b"a");
            world
        }

        fn kernels(&self, content: &[u8]) {
            let mut image = b"\x7fELF\x02\x01".to_vec();
            image.resize(64, 0);
            image.extend(content);
            std::fs::write(self.cubins.path().join("k.sm_90a.cubin"), image).unwrap();
        }

        /// Qualifies on a device of this driver; gives the kernels that were tried, and what is known now.
        fn qualify(&self, child: &Child, driver: i32, anew: bool) -> (usize, Result<Qualification, QualifyError>) {
            let wanted = names(&NEEDS.cases(HOPPER));
            self.with(driver, |request| qualify(child, request, &wanted, anew))
        }

        /// The kernels that are used on a first start.
        fn ensure(&self, child: &Child) -> Result<Selection, QualifyError> {
            self.with(13000, |request| ensure_by(child, request, false)).1
        }

        fn with<R>(&self, driver: i32, run: impl FnOnce(Request<'_>) -> R) -> (usize, R) {
            let mut tried = 0;
            let options = CudaOptions { cubins: self.cubins.path().to_owned(), ..CudaOptions::new(NEEDS.activations) };
            let (name, uuid) = ("H200".into(), "ab".into());
            let probe = Probe { name, uuid, capability: HOPPER, driver, integrated: false, memory: 0, free: None, sms: 132 };
            let request = Request {
                state_dir: self.state.path(),
                options: &options,
                probe: &probe,
                needs: NEEDS,
                progress: &mut |_| tried += 1,
                cancelled: &|| false,
            };
            let found = run(request);
            (tried, found)
        }
    }

    #[test]
    fn kernels_are_tried_once_for_a_device_driver_and_set_of_files() {
        let (world, all) = (World::new(), NEEDS.cases(HOPPER).len());
        let right = child("begun; right");
        let (tried, found) = world.qualify(&right, 13000, false);
        assert_eq!((tried, found.unwrap().kernels.len()), (all, all));
        let (tried, found) = world.qualify(&right, 13000, false);
        assert_eq!((tried, found.unwrap().kernels.len()), (0, all), "they are known");
        assert_eq!(world.qualify(&right, 13010, false).0, all, "another driver");
        world.kernels(b"b");
        assert_eq!(world.qualify(&right, 13000, false).0, all, "other files");
        assert_eq!(world.qualify(&right, 13000, true).0, all, "told to");
    }

    #[test]
    fn a_refusal_is_remembered_until_the_kernel_is_tried_again() {
        let world = World::new();
        let dies = child("begun; case $k in sample_greedy) kill -ABRT $$;; *) right;; esac");
        let refused = |found: Result<Qualification, QualifyError>| {
            found.unwrap().refused().map(|k| (k.kernel.clone(), k.verdict)).collect::<Vec<_>>()
        };
        let want = [("sample_greedy".to_owned(), Verdict::Faulted)];
        assert_eq!(refused(world.qualify(&dies, 13000, false).1), want);
        let right = child("begun; right");
        assert_eq!(refused(world.qualify(&right, 13000, false).1), want);
        assert_eq!(refused(world.qualify(&right, 13000, true).1), []);
        assert_eq!(refused(world.qualify(&right, 13000, false).1), []);
    }

    #[test]
    fn without_a_place_for_the_record_kernels_are_tried_at_every_start() {
        let world = World::new();
        std::fs::create_dir(world.state.path().join("qualification.json")).unwrap();
        let right = child("begun; right");
        for _ in 0..2 {
            let (tried, found) = world.qualify(&right, 13000, false);
            assert_eq!((tried, found.unwrap().refused().count()), (NEEDS.cases(HOPPER).len(), 0));
        }
    }

    #[test]
    fn cut_and_foreign_files_are_refused_before_anything_is_tried() {
        let world = World::new();
        let right = child("begun; right");
        std::fs::write(world.cubins.path().join("z.sm_90a.cubin"), b"\x7fELF\x02\x01").unwrap();
        let (tried, found) = world.qualify(&right, 13000, false);
        assert!(
            tried == 0 && matches!(&found, Err(QualifyError::Unusable(_))) && found.unwrap_err().to_string().contains("z.sm_90a.cubin")
        );
        std::fs::remove_file(world.cubins.path().join("z.sm_90a.cubin")).unwrap();
        std::fs::write(world.cubins.path().join("manifest.json"), r#"{"cubins": []}"#).unwrap();
        assert!(matches!(world.qualify(&right, 13000, false), (0, Err(QualifyError::Files(_)))));
    }

    #[test]
    fn only_a_kernel_that_serving_needs_costs_the_device() {
        let dies = |kernel: &str| child(&format!("begun; case $k in {kernel}) kill -ABRT $$;; *) right;; esac"));
        let refused = World::new().ensure(&dies("attn_prefill_*_dense_mma"));
        assert!(matches!(&refused, Err(QualifyError::Refused(k)) if k.len() == 1 && k[0].kernel.ends_with("_dense_mma")), "{refused:?}");
        let portable = World::new().ensure(&dies("attn_prefill_*_dense_wgmma")).unwrap();
        assert!(portable.own.is_empty() && portable.degraded.unwrap().contains("_dense_wgmma (faulted"));
        let unmeasured = World::new().ensure(&dies("*_measure*")).unwrap();
        assert_eq!((unmeasured.own.len(), unmeasured.degraded), (2, None));
        assert_eq!(unmeasured.excluded.len(), 2, "{:?}", unmeasured.excluded);
    }

    #[test]
    fn refused_kernels_are_named_and_counted() {
        let kernel = |name: &str, verdict, reason: Option<&str>| KernelVerdict {
            kernel: name.into(),
            verdict,
            micros: None,
            reason: reason.map(str::to_owned),
        };
        let mut refused = vec![kernel("a", Verdict::Wrong, Some("rows: element 0")), kernel("b", Verdict::Hung, None)];
        assert_eq!(
            sentence(&refused),
            "kernels refused by qualification (--qualify always tries them again): a (wrong: rows: element 0), b (hung)"
        );
        refused.extend([kernel("c", Verdict::Faulted, None), kernel("d", Verdict::Hung, None)]);
        assert!(sentence(&refused).ends_with("c (faulted), and 1 more"), "{}", sentence(&refused));
    }
}

//! The parent against children that are shell scripts, with every way to misbehave.

use super::*;
use skip_kernels::KvFormat;
use skip_kernels::backend::Activation;
use skip_kernels::cuda::qualify::Needs;
use skip_kernels::cuda::{Activations, CudaOptions};
use std::cell::RefCell;

const LIMITS: Limits = Limits { open: Duration::from_millis(1500), case: Duration::from_millis(700), end: Duration::from_secs(5) };

fn job(kernels: &[&str]) -> Job {
    let needs = Needs { head_dim: 64, group: 1, cache: KvFormat::Fp16, activations: Activations::Bf16, gate: Activation::Silu };
    Job::new(&CudaOptions::new(Activations::Bf16), &needs, kernels.iter().map(|k| (*k).to_owned()).collect())
}

/// A child that opens, and then runs `act` for each of its kernels, whose name is `$k`.
pub(in crate::qualify) fn child(act: &str) -> Child {
    let script = format!(
        r#"read -r job
           say() {{ printf '%s\n' "$1"; }}
           begun() {{ say "{{\"report\":\"begun\",\"kernel\":\"$k\"}}"; }}
           right() {{ say "{{\"report\":\"tried\",\"kernel\":\"$k\",\"verdict\":\"right\",\"micros\":2.5}}"; }}
           say '{{"report":"opened"}}'
           kernels=$(printf '%s' "$job" | sed 's/.*"kernels":\[//; s/\].*//; s/[",]/ /g')
           for k in $kernels; do {act}; done"#
    );
    shell(&script)
}

fn shell(script: &str) -> Child {
    Child { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] }
}

fn try_all(child: &Child, kernels: &[&str]) -> Result<Vec<KernelVerdict>, TryError> {
    let trying = Trying { child, limits: LIMITS, progress: &mut |_| {}, cancelled: &|| false };
    trying.all(&job(kernels))
}

fn words(verdicts: &[KernelVerdict]) -> Vec<(&str, &str)> {
    verdicts.iter().map(|k| (k.kernel.as_str(), k.verdict.name())).collect()
}

#[test]
fn kernels_that_are_right_are_timed_and_progress_is_told() {
    let told = RefCell::new(Vec::new());
    let child = child("begun; right");
    let trying = Trying {
        child: &child,
        limits: LIMITS,
        progress: &mut |p| told.borrow_mut().push((p.kernel, p.done, p.total)),
        cancelled: &|| false,
    };
    let verdicts = trying.all(&job(&["a", "b"])).unwrap();
    assert_eq!(words(&verdicts), [("a", "right"), ("b", "right")]);
    assert_eq!(verdicts[0].micros, Some(2.5));
    assert_eq!(*told.borrow(), [("a".to_owned(), 0, 2), ("b".to_owned(), 1, 2)]);
}

#[test]
fn a_child_that_dies_or_hangs_costs_the_kernel_it_was_at_and_no_other() {
    let act = r#"begun; case $k in dies) kill -SEGV $$;; exits) exit 7;; hangs) exec sleep 60;; babbles) echo 'CUDA says hello'; right;; *) right;; esac"#;
    let verdicts = try_all(&child(act), &["a", "dies", "b", "hangs", "exits", "babbles", "c"]).unwrap();
    let want = [
        ("a", "right"),
        ("dies", "faulted"),
        ("b", "right"),
        ("hangs", "hung"),
        ("exits", "faulted"),
        ("babbles", "faulted"),
        ("c", "right"),
    ];
    assert_eq!(words(&verdicts), want);
    let reason = |i: usize| verdicts[i].reason.clone().unwrap();
    assert!(reason(1).contains("signal 11") && reason(4).contains("exit code 7"), "{} / {}", reason(1), reason(4));
    assert!(reason(3).contains("700ms") && reason(5).contains("CUDA says hello"), "{} / {}", reason(3), reason(5));
}

#[test]
fn a_signal_from_outside_says_nothing_of_a_kernel() {
    for signal in ["TERM", "INT", "KILL"] {
        let ended = try_all(&child(&format!("begun; case $k in b) kill -{signal} $$;; *) right;; esac")), &["a", "b", "c"]);
        assert!(matches!(&ended, Err(TryError::Process(why)) if why.contains("says nothing")), "{signal}: {ended:?}");
    }
}

#[test]
fn a_fault_that_the_child_reports_is_taken_over_and_the_rest_goes_to_another() {
    let fault = r#"say "{\"report\":\"tried\",\"kernel\":\"$k\",\"verdict\":\"faulted\",\"reason\":\"trap\"}"; exec sleep 60"#;
    let verdicts = try_all(&child(&format!("begun; case $k in traps) {fault};; *) right;; esac")), &["traps", "b"]).unwrap();
    assert_eq!(words(&verdicts), [("traps", "faulted"), ("b", "right")]);
    assert_eq!(verdicts[0].reason.as_deref(), Some("trap"));
}

#[test]
fn a_child_that_does_nothing_is_not_started_again_and_again() {
    for script in ["exit 3", "exec sleep 60", "echo garbage", "read -r job; echo '{\"report\":\"opened\"}'", "yes | head -c 300000"] {
        let error = try_all(&shell(script), &["a"]).unwrap_err();
        assert!(matches!(error, TryError::Process(_)), "{script}: {error:?}");
    }
    let missing = Child { program: "/nowhere/skipd".into(), args: Vec::new() };
    assert!(matches!(try_all(&missing, &["a"]), Err(TryError::Process(_))));
}

#[test]
fn reports_out_of_turn_are_not_believed() {
    let skips_ahead = child(r#"k=b; begun; right"#);
    assert!(matches!(try_all(&skips_ahead, &["a", "b"]), Err(TryError::Process(_))));
    let without_beginning = child("right");
    assert!(matches!(try_all(&without_beginning, &["a"]), Err(TryError::Process(_))));
    let of_another = child(r#"begun; k=z; right"#);
    assert_eq!(words(&try_all(&of_another, &["a"]).unwrap()), [("a", "faulted")]);
}

#[test]
fn an_unusable_device_is_no_kernel_s_fault() {
    let child = shell(r#"read -r job; echo '{"report":"unusable","reason":"no CUDA driver"}'"#);
    assert_eq!(try_all(&child, &["a"]), Err(TryError::Unusable("no CUDA driver".into())));
}

#[test]
fn a_trial_that_is_not_wanted_any_more_ends_at_once() {
    let began = Instant::now();
    let child = child("begun; exec sleep 60");
    let trying =
        Trying { child: &child, limits: Limits::default(), progress: &mut |_| {}, cancelled: &|| began.elapsed().as_millis() > 300 };
    assert_eq!(trying.all(&job(&["a"])), Err(TryError::Cancelled));
    assert!(began.elapsed() < Duration::from_secs(5));
}

//! Calls that do not fit together are refused, and geometries without a kernel run on the reference.

use crate::fixture::{Who, assert_same, best, decode, geometry, prefill, sequence};
use skip_kernels::attention::{AttnCall, AttnGeometry, AttnSeq, SkipCounters};
use skip_kernels::cpu::attention;
use skip_kernels::cpu::pool::Pool;
use skip_kernels::pages::{KvView, PageLayout};
use skip_kernels::{KernelError, KvFormat};

/// One sequence of 5 rows behind 130 keys; `change` may break anything.
fn call(change: impl FnOnce(&mut AttnGeometry, &mut Vec<AttnSeq<'static>>, &mut usize)) -> Result<(), KernelError> {
    let mut geometry = geometry(4, 2, 64);
    let mut seqs = vec![AttnSeq { row: 0, q_len: 5, q_start: 125, kv_len: 130, block_table: &[1, 0], ln_lambda: Some(-1.0) }];
    let mut rows = 5;
    change(&mut geometry, &mut seqs, &mut rows);
    let layout = PageLayout { kv_heads: 2, head_dim: 64, format: KvFormat::Fp16 };
    let pages = vec![0; 2 * layout.page_len()];
    let mut counters = vec![SkipCounters::default(); seqs.len()];
    let mut out = vec![0.0; rows * 256];
    let mut call = AttnCall {
        geometry,
        q: &vec![0.0; rows * 256],
        q_stride: 256,
        kv: KvView { layout, k: &pages, v: &pages },
        seqs: &seqs,
        out: &mut out,
        lse: None,
        kept: None,
        counters: &mut counters,
    };
    attention::prefill(&mut call, &Pool::new(1))
}

#[test]
fn what_does_not_fit_together_is_refused() {
    call(|_, _, _| ()).unwrap();
    type Change = fn(&mut AttnGeometry, &mut Vec<AttnSeq<'static>>, &mut usize);
    let changes: [(&str, Change); 10] = [
        ("a page that is not there", |_, s, _| s[0].block_table = &[1, 2]),
        ("too few pages", |_, s, _| s[0].block_table = &[1]),
        ("more rows than keys", |_, s, _| s[0].q_start = 126),
        ("a position out of range", |_, s, _| s[0].q_start = usize::MAX - 2),
        ("rows shared by two sequences", |_, s, _| s.push(AttnSeq { row: 4, ..s[0] })),
        ("rows beyond the query", |_, _, rows| *rows = 4),
        ("heads that do not divide", |g, _, _| g.heads = 3),
        ("no KV heads", |g, _, _| g.kv_heads = 0),
        ("another head size than the pages'", |g, _, _| g.head_dim = 32),
        ("a threshold that is no number", |_, s, _| s[0].ln_lambda = Some(f32::NAN)),
    ];
    for (what, change) in changes {
        assert!(matches!(call(change), Err(KernelError::Invalid(_))), "{what}");
    }
}

#[test]
fn an_empty_chunk_and_an_empty_batch_are_nothing() {
    call(|_, s, _| s[0].q_len = 0).unwrap();
    call(|_, s, _| s.clear()).unwrap();
}

#[test]
fn head_sizes_without_a_kernel_run_on_the_reference() {
    let g = geometry(4, 2, 80);
    assert!(!attention::has_kernel(&g));
    let seqs = [sequence(&g, 150, 150, Some(-1.0), 1)];
    assert_same(&prefill(best(), &g, KvFormat::Fp16, &seqs)[0], &prefill(Who::Scalar, &g, KvFormat::Fp16, &seqs)[0], "prefill");
    let seqs = [sequence(&g, 1, 150, Some(-1.0), 1)];
    assert_same(&decode(best(), &g, KvFormat::Fp16, &seqs)[0], &decode(Who::Scalar, &g, KvFormat::Fp16, &seqs)[0], "decode");
}

//! Which of the kernels that may be left out are used: those of the device's own where they are right and no slower than the portable ones.

use super::words;
use skip_client::protocol::{KernelVerdict, Verdict};
use skip_kernels::cuda::qualify::{Case, Role};
use std::collections::BTreeSet;

/// The choice among kernels that may be left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// The device's own, in use in place of portable ones.
    pub own: Vec<String>,
    /// In the files and not to be used.
    pub excluded: BTreeSet<String>,
    /// What status says of it, a sentence each.
    pub notes: Vec<String>,
    /// Why serving is slower than the device could, if it is.
    pub degraded: Option<String>,
}

impl Selection {
    /// By what was found of them. A dense sequence gives the same bits whether it runs in the dense or in the skipping kernel, so the device's
    /// own are used together or not at all.
    pub fn of(cases: &[Case], found: &[KernelVerdict]) -> Self {
        let verdict = |name: &str| found.iter().find(|k| k.kernel == name);
        let is_refused = |k: &&KernelVerdict| !matches!(k.verdict, Verdict::Right | Verdict::Absent);
        let mut chosen = Self::default();

        for case in cases.iter().filter(|case| case.role == Role::Measures) {
            if let Some(refused) = verdict(&case.name).filter(is_refused) {
                chosen.excluded.insert(case.name.clone());
                chosen.notes.push(format!("no measuring: {}", words(refused)));
            }
        }

        for case in cases.iter().filter(|case| case.role == Role::Edits) {
            if let Some(refused) = verdict(&case.name).filter(is_refused) {
                chosen.excluded.insert(case.name.clone());
                chosen.notes.push(format!("no structured output, penalties or logit bias: {}", words(refused)));
            }
        }

        let own: Vec<&str> = cases.iter().filter(|case| matches!(case.role, Role::Own { .. })).map(|case| case.name.as_str()).collect();
        let verdicts: Vec<&KernelVerdict> = own.iter().filter_map(|name| verdict(name)).collect();
        let refused: Vec<String> = verdicts.iter().copied().filter(is_refused).map(words).collect();
        let times = cases.iter().filter_map(|case| Some((micros(verdict(&case.name))?, micros(verdict(portable(case)?))?)));
        let (theirs, portable) = times.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        if verdicts.iter().all(|k| k.verdict == Verdict::Absent) {
            return chosen;
        }
        if !refused.is_empty() {
            let reason = format!("portable kernels serve, refused: {}", refused.join(", "));
            chosen.notes.push(reason.clone());
            chosen.degraded = Some(reason);
        } else if verdicts.len() < own.len() || verdicts.iter().any(|k| k.verdict == Verdict::Absent) {
            chosen.notes.push("portable kernels serve: the device's own are not all in the files".into());
        } else if theirs > portable {
            chosen.notes.push(format!("portable kernels serve: {portable:.0} µs on the cases, the device's own {theirs:.0}"));
        } else {
            chosen.own = own.into_iter().map(str::to_owned).collect();
            return chosen;
        }
        chosen.excluded.extend(own.into_iter().map(str::to_owned));
        chosen
    }

    /// All that the files have, untried.
    pub fn untried(own: Vec<String>) -> Self {
        Self { own, ..Self::default() }
    }

    /// The portable kernels alone.
    pub fn portable(mut self) -> Self {
        self.excluded.extend(self.own.drain(..));
        self
    }
}

fn portable(case: &Case) -> Option<&str> {
    match &case.role {
        Role::Own { portable } => Some(portable),
        Role::Serves | Role::Measures | Role::Edits => None,
    }
}

fn micros(verdict: Option<&KernelVerdict>) -> Option<f32> {
    verdict.and_then(|k| k.micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_kernels::KvFormat;
    use skip_kernels::backend::Activation;
    use skip_kernels::cuda::Activations;
    use skip_kernels::cuda::qualify::Needs;

    const NEEDS: Needs = Needs { head_dim: 128, group: 4, cache: KvFormat::Bf16, activations: Activations::Bf16, gate: Activation::Silu };
    const DENSE: &str = "attn_prefill_bf16_d128_dense_wgmma";
    const SKIP: &str = "attn_prefill_bf16_d128_skip_wgmma";

    /// The choice where `changed` was found of some kernels, and all others are right in 10 µs, those of the device's own in 6.
    fn choice(capability: (i32, i32), changed: &[(&str, Verdict, f32)]) -> Selection {
        let cases = NEEDS.cases(capability);
        let found: Vec<KernelVerdict> = cases
            .iter()
            .map(|case| {
                let usual = (Verdict::Right, if portable(case).is_some() { 6.0 } else { 10.0 });
                let (verdict, micros) = changed.iter().find(|c| c.0 == case.name).map_or(usual, |c| (c.1, c.2));
                let micros = (verdict == Verdict::Right).then_some(micros);
                KernelVerdict { kernel: case.name.clone(), verdict, micros, reason: None }
            })
            .collect();
        Selection::of(&cases, &found)
    }

    #[test]
    fn the_device_s_own_kernels_are_used_where_they_are_right_and_faster() {
        assert_eq!(choice((9, 0), &[]), Selection { own: vec![DENSE.into(), SKIP.into()], ..Selection::default() });
        let slower = choice((9, 0), &[(DENSE, Verdict::Right, 25.0)]);
        assert_eq!((slower.excluded.len(), slower.own.len(), &slower.degraded), (2, 0, &None));
        assert_eq!(slower.notes, ["portable kernels serve: 20 µs on the cases, the device's own 31"]);
        assert_eq!(choice((9, 0), &[(DENSE, Verdict::Right, 13.0)]).own.len(), 2, "together they are faster");
    }

    #[test]
    fn one_that_is_refused_takes_its_sibling_along_and_is_named() {
        for verdict in [Verdict::Wrong, Verdict::Faulted, Verdict::Hung] {
            let refused = choice((9, 0), &[(SKIP, verdict, 0.0)]);
            assert_eq!(refused.excluded, BTreeSet::from([DENSE.to_owned(), SKIP.to_owned()]));
            let reason = refused.degraded.unwrap();
            assert_eq!(reason, format!("portable kernels serve, refused: {SKIP} ({})", verdict.name()));
            assert_eq!((refused.notes, refused.own.len()), (vec![reason], 0));
        }
    }

    #[test]
    fn where_there_are_none_nothing_is_said() {
        assert_eq!(choice((8, 7), &[]), Selection::default());
        assert_eq!(choice((9, 0), &[(DENSE, Verdict::Absent, 0.0), (SKIP, Verdict::Absent, 0.0)]), Selection::default());
        let half = choice((9, 0), &[(DENSE, Verdict::Absent, 0.0)]);
        assert!(half.own.is_empty() && half.excluded.contains(SKIP) && half.notes.len() == 1 && half.degraded.is_none());
    }

    #[test]
    fn a_refused_kernel_that_measures_costs_measuring_alone() {
        let measure = "attn_decode_bf16_d128_measure";
        let refused = choice((9, 0), &[(measure, Verdict::Wrong, 0.0)]);
        assert_eq!((refused.own.len(), refused.degraded), (2, None));
        assert_eq!(refused.excluded, BTreeSet::from([measure.to_owned()]));
        assert_eq!(refused.notes, ["no measuring: attn_decode_bf16_d128_measure (wrong)"]);
    }

    #[test]
    fn a_refused_kernel_that_edits_logits_costs_the_requests_that_need_it_alone() {
        let refused = choice((8, 7), &[("edit_logits", Verdict::Wrong, 0.0)]);
        assert_eq!((refused.excluded, refused.degraded), (BTreeSet::from(["edit_logits".to_owned()]), None));
        assert_eq!(refused.notes, ["no structured output, penalties or logit bias: edit_logits (wrong)"]);
    }

    #[test]
    fn portable_ones_alone_leave_out_what_was_chosen() {
        let portable = choice((9, 0), &[]).portable();
        assert_eq!((portable.own.len(), portable.excluded.len()), (0, 2));
        assert_eq!(Selection::untried(vec![DENSE.into()]).portable().excluded, BTreeSet::from([DENSE.to_owned()]));
    }
}

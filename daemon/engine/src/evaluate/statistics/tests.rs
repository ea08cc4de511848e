use super::*;

fn scores(task: &str, values: impl IntoIterator<Item = f64>) -> Vec<ItemScore> {
    values.into_iter().enumerate().map(|(i, score)| ItemScore { id: format!("{task}/{i}"), task: task.into(), score }).collect()
}

/// `n` items that dense does, of which the arm loses some.
fn lost(n: usize, losses: usize) -> Gate {
    gate(&scores("ruler/vt", vec![1.0; n]), &scores("ruler/vt", (0..n).map(|i| f64::from(u8::from(i >= losses)))), MAX_DROP).unwrap()
}

#[test]
fn quantiles_are_those_of_the_tables() {
    let table = [
        (0.975, 1, 12.706_205),
        (0.975, 2, 4.302_653),
        (0.975, 9, 2.262_157),
        (0.975, 30, 2.042_272),
        (0.8, 10, 0.879_058),
        (0.975, 100, 1.983_972),
        (0.975, 1_000_000, 1.959_966),
    ];
    for (probability, freedom, wanted) in table {
        let got = student::quantile(probability, freedom);
        assert!((got - wanted).abs() < 1e-5, "{probability} {freedom}: {got}");
    }
    assert!((student::quantile(0.975, 1000) - student::quantile(0.975, 1001)).abs() < 1e-5, "both ways agree where they meet");
}

#[test]
fn no_loss_in_few_items_proves_nothing_and_in_enough_it_does() {
    let needed = items_for_a_pass(MAX_DROP).unwrap();
    assert!((85..110).contains(&needed), "{needed}");
    assert_eq!(lost(needed, 0).verdict, Verdict::Pass);
    let few = lost(needed - 1, 0);
    assert_eq!(few.verdict, Verdict::Inconclusive);
    assert!(few.groups[0].reason.contains(&format!("a pass needs {needed} items")), "{}", few.groups[0].reason);
    assert_eq!(items_for_a_pass(0.0), None);
}

#[test]
fn many_losses_fail_and_some_are_inconclusive() {
    assert_eq!(lost(100, 20).verdict, Verdict::Fail);
    assert_eq!(lost(100, 3).verdict, Verdict::Inconclusive);
    assert_eq!(lost(5, 1).verdict, Verdict::Inconclusive);
    assert_eq!(lost(2000, 20).verdict, Verdict::Pass, "a loss of .01 is within .03");
    let drop = lost(100, 20).groups[0].kept;
    assert!((drop.drop - 0.2).abs() < 1e-12 && drop.interval[0] < 0.2 && drop.interval[1] > 0.2 && drop.detectable < 0.2, "{drop:?}");
}

/// Answers that flip either way, as often: the items that dense happened to get right show a loss that is none.
#[test]
fn flips_both_ways_are_not_called_a_loss() {
    let dense: Vec<f64> = (0..400).map(|i| f64::from(u8::from(i % 2 == 0))).collect();
    let arm: Vec<f64> = dense.iter().enumerate().map(|(i, score)| if i / 2 % 7 == 0 { 1.0 - score } else { *score }).collect();
    let gate = gate(&scores("mmlu/law", dense), &scores("mmlu/law", arm), MAX_DROP).unwrap();
    let group = &gate.groups[0];
    assert!(group.kept.interval[0] > MAX_DROP && group.all.drop.abs() < 1e-12, "{group:?}");
    assert_eq!((gate.verdict, group.left_out), (Verdict::Inconclusive, 200));
}

/// Of arms that truly lose .08, drawn 400 times with 100 items each, next to none passes.
#[test]
fn noise_does_not_make_a_pass() {
    let mut rng = crate::evaluate::seed::Rng::named(1, "noise");
    let mut passes = 0;
    let mut covered = 0;
    for _ in 0..400 {
        let arm: Vec<f64> = (0..100).map(|_| f64::from(u8::from(rng.fraction() >= 0.08))).collect();
        let gate = gate(&scores("ruler/vt", vec![1.0; 100]), &scores("ruler/vt", arm), MAX_DROP).unwrap();
        passes += usize::from(gate.verdict == Verdict::Pass);
        let [low, high] = gate.groups[0].kept.interval;
        covered += usize::from((low..=high).contains(&0.08));
    }
    assert!(passes <= 2, "{passes} of 400 passed");
    assert!(covered >= 372, "{covered} of 400 intervals hold the true drop");
}

#[test]
fn groups_are_gated_apart_and_the_worst_counts() {
    let dense = [scores("ruler/vt", vec![1.0; 200]), scores("mmlu/law", vec![1.0; 200])].concat();
    let arm = [scores("ruler/vt", vec![1.0; 200]), scores("mmlu/law", (0..200).map(|i| f64::from(u8::from(i > 60))))].concat();
    let gate = gate(&dense, &arm, MAX_DROP).unwrap();
    let verdicts: Vec<_> = gate.groups.iter().map(|group| (group.group.as_str(), group.verdict)).collect();
    assert_eq!(verdicts, [("ruler", Verdict::Pass), ("mmlu", Verdict::Fail)]);
    assert_eq!((gate.verdict, gate.verdict.exit_code()), (Verdict::Fail, EXIT_FAIL));
    assert_eq!(gate.tasks[1].group, "mmlu/law");
}

#[test]
fn a_model_that_can_do_nothing_is_inconclusive() {
    let gate = gate(&scores("ruler/vt", vec![0.0; 300]), &scores("ruler/vt", vec![0.0; 300]), MAX_DROP).unwrap();
    assert_eq!((gate.verdict, gate.groups[0].left_out), (Verdict::Inconclusive, 300));
    assert_eq!(gate.verdict.exit_code(), EXIT_INCONCLUSIVE);
}

#[test]
fn scores_that_are_not_pairs_are_refused() {
    let one = scores("ruler/vt", [1.0, 1.0]);
    let other = scores("ruler/cwe", [1.0, 1.0]);
    assert!(matches!(gate(&one, &other, 0.03), Err(GateError::Unpaired { index: 0, .. })));
    assert!(matches!(gate(&one, &one[..1], 0.03), Err(GateError::Unpaired { index: 1, .. })));
    assert_eq!(gate(&[], &[], 0.03), Err(GateError::Empty));
    assert_eq!(gate(&one, &one, -0.1), Err(GateError::MaxDrop(-0.1)));
    assert!(matches!(gate(&scores("x", [f64::NAN]), &scores("x", [0.0]), 0.03), Err(GateError::Score { .. })));
}

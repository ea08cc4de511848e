use super::*;

fn score(metric: Metric, answer: &str, references: &[&str]) -> f64 {
    Reference::new(metric, references.iter().map(|s| s.to_string()).collect()).score(answer)
}

fn near(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-9, "{got} is not {wanted}");
}

#[test]
fn every_metric_has_a_name_that_names_it() {
    for metric in Metric::ALL {
        assert_eq!(Metric::named(metric.name()), Some(metric));
        assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
    }
}

#[test]
fn rulers_matches_count_all_references_or_any_in_either_case() {
    near(score(Metric::RulerAll, "They are 12 and Ab.", &["12", "aB", "77", "9"]), 0.5);
    near(score(Metric::RulerPart, "They are 12 and Ab.", &["77", "aB"]), 1.0);
    near(score(Metric::RulerPart, "none", &["77"]), 0.0);
    near(score(Metric::RulerAll, "<think>it is 12", &["12"]), 0.0);
    near(score(Metric::RulerAll, "<think>it is 13</think>12", &["12"]), 1.0);
}

// The numbers are those of LongBench's metrics.py with rouge 1.0.1 and fuzzywuzzy 0.18.0; 2,400 random cases agreed when this was written.
#[test]
fn longbenchs_metrics_give_what_its_own_code_gives() {
    let pairs = [
        ("The cat sat on the mat. It was warm.", "A cat sat on a warm mat."),
        ("Paris, the capital of France.", "paris france"),
        ("one two three. four five", "three two one. five four six"),
    ];
    let wanted = [
        (Metric::QaF1, [0.8333333333333333, 0.6666666666666666, 0.9090909090909091]),
        (Metric::RougeL, [0.6249999950781252, 0.0, 0.36363635867768596]),
        (Metric::CodeSimilarity, [0.57, 0.54, 0.58]),
    ];
    for (metric, scores) in wanted {
        for ((answer, reference), wanted) in pairs.iter().zip(scores) {
            near(score(metric, answer, &[reference]), wanted);
        }
    }
    near(score(Metric::CodeSimilarity, "# no\n    return self.total(x)\nmore", &["    return self.sum(x, y)"]), 0.78);
    // Characters that make up more than a hundredth of a long reference are passed over.
    let (answer, reference) = ("ab".repeat(150) + "x = y", "x = y".to_owned() + &"ab".repeat(140));
    near(score(Metric::CodeSimilarity, &answer, &[&reference]), 0.02);
    near(score(Metric::Retrieval, "Paragraph 3, not 4", &["Paragraph 3"]), 0.5);
    near(score(Metric::Retrieval, "Paragraph 3", &["no number"]), 0.0);
    near(score(Metric::Count, "there are 12", &["12"]), 1.0);
    near(score(Metric::RougeL, "", &["x"]), 0.0);
}

#[test]
fn a_classification_is_shared_between_the_classes_named() {
    let reference = |right: &str| Reference {
        classes: ["Number of something", "Number", "Date"].map(str::to_owned).to_vec(),
        ..Reference::new(Metric::Classification, vec![right.into()])
    };
    near(reference("Date").score("a Date or a Number"), 0.5);
    near(reference("Number of something").score("Number of something"), 1.0);
    near(reference("Date").score("Number"), 0.0);
}

#[test]
fn the_first_line_is_all_that_counts_where_examples_go_on() {
    let mut reference = Reference::new(Metric::QaF1, vec!["red".into()]);
    near(reference.score("\nred\nblue"), 2.0 / 3.0);
    reference.first_line = true;
    near(reference.score("\nred\nblue"), 1.0);
}

#[test]
fn a_choice_is_the_letter_given_not_one_in_a_word() {
    for (answer, wanted) in [("B", 1.0), ("(B) it is", 1.0), ("The answer is B, not A.", 1.0), ("A. Not B", 0.0), ("Be it", 0.0), ("", 0.0)]
    {
        near(score(Metric::Choice, answer, &["B"]), wanted);
    }
}

#[test]
fn exact_looks_past_case_and_articles_and_contains_does_not() {
    near(score(Metric::Exact, " The Red-Fox. ", &["red fox", "redfox"]), 1.0);
    near(score(Metric::Contains, "RED", &["red"]), 0.0);
}

proptest::proptest! {
    #[test]
    fn any_answer_has_a_score(answer in ".{0,200}", reference in ".{1,80}") {
        for metric in Metric::ALL {
            let reference = Reference { classes: vec![reference.clone(), "b".into()], ..Reference::new(metric, vec![reference.clone()]) };
            let score = reference.score(&answer);
            proptest::prop_assert!((0.0..=1.0).contains(&score), "{metric:?} {score}");
        }
    }
}

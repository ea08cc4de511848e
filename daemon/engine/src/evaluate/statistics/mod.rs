//! Whether an arm loses more than it may: paired differences of the same items, an interval, and a verdict that noise cannot turn into a pass.
//!
//! Of each item the difference is dense score minus arm score. The interval is Bonett and Price's adjusted one for paired proportions (2012),
//! applied to scores between 0 and 1: two imagined items, one a whole loss and one a whole gain, join the n real ones, and the interval is
//! Student's over the n + 2. So a few items without a loss prove little: the upper end stays above .03 until there are 92.
//!
//! Items the dense model scores 0 on are left out: nothing can be lost on them. That alone turns the noise of answers that flip either way into
//! a loss, so a fail also needs the difference over all items to be above 0 beyond its interval.

mod student;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// Exit code of a pass.
pub const EXIT_PASS: i32 = 0;
/// Exit code where something went wrong and nothing is known.
pub const EXIT_ERROR: i32 = 1;
/// Exit code of a fail.
pub const EXIT_FAIL: i32 = 2;
/// Exit code where the items are too few, or their differences too wide, to tell.
pub const EXIT_INCONCLUSIVE: i32 = 3;

/// Largest drop allowed unless another is asked for.
pub const MAX_DROP: f64 = 0.03;
/// The interval holds the true drop with this probability.
pub const CONFIDENCE: f64 = 0.95;
/// A drop of the minimum detectable size is found with this probability.
pub const POWER: f64 = 0.8;

/// One item's score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemScore {
    /// The item.
    pub id: String,
    /// Its group: `mmlu/anatomy`. Up to the slash it is what is gated.
    pub task: String,
    /// From 0 to 1.
    pub score: f64,
}

/// What came of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The interval's upper end is within the allowed drop.
    Pass,
    /// Neither.
    Inconclusive,
    /// The interval's lower end is beyond the allowed drop, and over all items there is a loss.
    Fail,
}

impl Verdict {
    /// The exit code of a command that ends with it.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Pass => EXIT_PASS,
            Self::Inconclusive => EXIT_INCONCLUSIVE,
            Self::Fail => EXIT_FAIL,
        }
    }
}

/// A mean difference and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    /// Items.
    pub n: usize,
    /// Mean dense score; 0 where there is no item.
    pub dense: f64,
    /// Mean score of the arm.
    pub arm: f64,
    /// Mean of the differences.
    pub drop: f64,
    /// Ends of the interval, of [`CONFIDENCE`].
    pub interval: [f64; 2],
    /// The smallest drop that these items would show, by two-sided test at 1 - [`CONFIDENCE`], with [`POWER`].
    pub detectable: f64,
}

impl Drop {
    /// Of pairs (dense score, arm score).
    fn of(pairs: &[(f64, f64)]) -> Self {
        let n = pairs.len();
        let mean = |sum: f64| if n == 0 { 0.0 } else { sum / n as f64 };
        let dense = mean(pairs.iter().map(|pair| pair.0).sum());
        let arm = mean(pairs.iter().map(|pair| pair.1).sum());
        let (mut sum, mut squares) = (0.0, 2.0);
        for (dense, arm) in pairs {
            sum += dense - arm;
            squares += (dense - arm) * (dense - arm);
        }
        let all = (n + 2) as f64;
        let centre = sum / all;
        let error = ((squares / all - centre * centre).max(0.0) / all).sqrt();
        let quantile = |probability: f64| student::quantile(probability, n + 1);
        let beside = quantile((1.0 + CONFIDENCE) / 2.0);
        let interval = [(centre - beside * error).max(-1.0), (centre + beside * error).min(1.0)];
        Self { n, dense, arm, drop: dense - arm, interval, detectable: ((beside + quantile(POWER)) * error).min(1.0) }
    }
}

/// One group of tasks, compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `ruler`, `mmlu`, `longbench`, `tasks`; or one task.
    pub group: String,
    /// Over items that the dense model can do: what is gated.
    pub kept: Drop,
    /// Items left out: dense scored 0.
    pub left_out: usize,
    /// Over all items.
    pub all: Drop,
    /// What came of it.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub reason: String,
}

/// Every group, compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// The largest drop allowed.
    pub max_drop: f64,
    /// What is gated, group by group.
    pub groups: Vec<Comparison>,
    /// The same by task, for reading: a task alone has few items, and its verdict gates nothing.
    pub tasks: Vec<Comparison>,
    /// The worst of the groups'.
    pub verdict: Verdict,
}

/// Why scores cannot be compared.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// Other items, or in another order.
    #[error("item {index} is `{dense}` in the dense scores and `{arm}` in the arm's")]
    Unpaired {
        /// Which, from 0.
        index: usize,
        /// The dense item; `nothing` where there is none.
        dense: String,
        /// The arm's.
        arm: String,
    },
    /// A score that is none.
    #[error("the score of `{id}` is {score}, not from 0 to 1")]
    Score {
        /// Of which item.
        id: String,
        /// The score.
        score: f64,
    },
    /// The allowed drop is none.
    #[error("the allowed drop is {0}, not from 0 to 1")]
    MaxDrop(f64),
    /// No items.
    #[error("there are no items to compare")]
    Empty,
}

/// Compares an arm with dense, item by item.
///
/// # Errors
/// The two have not the same items in the same order, a score is not from 0 to 1, or there are none.
pub fn gate(dense: &[ItemScore], arm: &[ItemScore], max_drop: f64) -> Result<Gate, GateError> {
    if !(0.0..=1.0).contains(&max_drop) {
        return Err(GateError::MaxDrop(max_drop));
    }
    let name = |scores: &[ItemScore], index: usize| scores.get(index).map_or_else(|| "nothing".to_owned(), |score| score.id.clone());
    let pairs = dense.len().max(arm.len());
    if let Some(index) = (0..pairs).find(|&i| dense.get(i).map(|s| (&s.id, &s.task)) != arm.get(i).map(|s| (&s.id, &s.task))) {
        return Err(GateError::Unpaired { index, dense: name(dense, index), arm: name(arm, index) });
    }
    if let Some(wrong) = dense.iter().chain(arm).find(|score| !(0.0..=1.0).contains(&score.score)) {
        return Err(GateError::Score { id: wrong.id.clone(), score: wrong.score });
    }
    if dense.is_empty() {
        return Err(GateError::Empty);
    }
    let by = |group: fn(&str) -> &str| {
        let mut groups: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for (dense, arm) in dense.iter().zip(arm) {
            let group = group(&dense.task);
            let place = *places.entry(group).or_insert_with(|| {
                groups.push((group, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push((dense.score, arm.score));
        }
        groups.into_iter().map(|(group, pairs)| compare(group, &pairs, max_drop)).collect::<Vec<_>>()
    };
    let groups = by(|task| task.split('/').next().unwrap_or(task));
    let verdict = groups.iter().map(|group| group.verdict).max().unwrap_or(Verdict::Inconclusive);
    Ok(Gate { max_drop, groups, tasks: by(|task| task), verdict })
}

fn compare(group: &str, pairs: &[(f64, f64)], max_drop: f64) -> Comparison {
    let can: Vec<(f64, f64)> = pairs.iter().copied().filter(|(dense, _)| *dense > 0.0).collect();
    let (kept, all) = (Drop::of(&can), Drop::of(pairs));
    let [low, high] = kept.interval;
    let (verdict, reason) = if kept.n == 0 {
        (Verdict::Inconclusive, "the dense model can do none of the items".to_owned())
    } else if high <= max_drop {
        (Verdict::Pass, format!("the drop is at most {high:.3}, and {max_drop} is allowed"))
    } else if low > max_drop && all.interval[0] > 0.0 {
        (Verdict::Fail, format!("the drop is at least {low:.3}, and {max_drop} is allowed"))
    } else if low > max_drop {
        (Verdict::Inconclusive, format!("the drop is at least {low:.3}, but over all items gains may outweigh it: answers flip both ways"))
    } else {
        let more = items_for_a_pass(max_drop).filter(|&needed| needed > kept.n);
        let more = more.map_or_else(String::new, |needed| format!("; even without a single loss a pass needs {needed} items"));
        (
            Verdict::Inconclusive,
            format!("the drop is between {low:.3} and {high:.3}; {} items show drops from {:.3} on{more}", kept.n, kept.detectable),
        )
    };
    Comparison { group: group.to_owned(), left_out: pairs.len() - kept.n, kept, all, verdict, reason }
}

/// Items, all the same in both arms, from which on the verdict is a pass. None where no number of items that anyone would run is enough.
pub fn items_for_a_pass(max_drop: f64) -> Option<usize> {
    // With no differences the error is √2 / (n + 2).
    let passes = |n: usize| student::quantile((1.0 + CONFIDENCE) / 2.0, n + 1) * 2f64.sqrt() / (n + 2) as f64 <= max_drop;
    let (mut low, mut high) = (0, 100_000);
    if !passes(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if passes(middle) { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

//! How alike two lines of code are: the ratio of Python's difflib (Ratcliff and Obershelp), in whole percent, as fuzzywuzzy gives it.

use std::collections::HashMap;

/// Characters of a line that are compared; the work grows with the square.
const MAX: usize = 2000;
/// From so many characters on, difflib passes over those that make up more than a hundredth of the text.
const POPULAR_FROM: usize = 200;

/// The first line of the answer without a backtick, `#` or `//`, against the reference.
pub(super) fn code(answer: &str, reference: &str) -> f64 {
    let comment = |line: &&str| line.contains('`') || line.contains('#') || line.contains("//");
    let line = answer.trim_start_matches('\n').split('\n').find(|line| !comment(line)).unwrap_or_default();
    if line == reference {
        return 1.0;
    }
    let chars = |text: &str| text.chars().take(MAX).collect::<Vec<char>>();
    (ratio(&chars(line), &chars(reference)) * 100.0).round_ties_even() / 100.0
}

/// Twice the characters in matching blocks over all characters; 0 where either is empty.
fn ratio(a: &[char], b: &[char]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (index, &c) in b.iter().enumerate() {
        places.entry(c).or_default().push(index);
    }
    if b.len() >= POPULAR_FROM {
        let popular = b.len() / 100 + 1;
        places.retain(|_, at| at.len() <= popular);
    }
    let mut matched = 0;
    let mut left = vec![(0, a.len(), 0, b.len())];
    while let Some((a_low, a_high, b_low, b_high)) = left.pop() {
        let (i, j, size) = longest(a, b, &places, (a_low, a_high), (b_low, b_high));
        if size > 0 {
            matched += size;
            left.push((a_low, i, b_low, j));
            left.push((i + size, a_high, j + size, b_high));
        }
    }
    2.0 * matched as f64 / (a.len() + b.len()) as f64
}

/// The longest block that both have, the earliest in `a` and then in `b`, grown over popular characters at its ends.
fn longest(
    a: &[char],
    b: &[char],
    places: &HashMap<char, Vec<usize>>,
    (a_low, a_high): (usize, usize),
    (b_low, b_high): (usize, usize),
) -> (usize, usize, usize) {
    let (mut best_i, mut best_j, mut best) = (a_low, b_low, 0);
    // Length of the block that ends at each place of b, for the character before and for this one.
    let mut before: HashMap<usize, usize> = HashMap::new();
    for (i, c) in a.iter().enumerate().take(a_high).skip(a_low) {
        let mut now = HashMap::new();
        for &j in places.get(c).map_or(&[][..], Vec::as_slice).iter().filter(|&&j| (b_low..b_high).contains(&j)) {
            let length = 1 + j.checked_sub(1).and_then(|j| before.get(&j)).copied().unwrap_or(0);
            now.insert(j, length);
            if length > best {
                (best_i, best_j, best) = (i + 1 - length, j + 1 - length, length);
            }
        }
        before = now;
    }
    while best_i > a_low && best_j > b_low && a[best_i - 1] == b[best_j - 1] {
        (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
    }
    while best_i + best < a_high && best_j + best < b_high && a[best_i + best] == b[best_j + best] {
        best += 1;
    }
    (best_i, best_j, best)
}

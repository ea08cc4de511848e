//! Words in common: LongBench's F1, and ROUGE-L as the Python package `rouge` computes it.

use std::collections::{HashMap, HashSet};

/// Bytes of an answer or reference that ROUGE-L looks at, and words of one sentence: its table grows with their product.
const MAX_TEXT: usize = 32 << 10;
const MAX_SENTENCE: usize = 1000;

/// Lower case, without ASCII punctuation and the articles a, an, the; words between single spaces.
pub(super) fn normalised(text: &str) -> String {
    let plain: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut out = String::with_capacity(plain.len());
    // Articles between word boundaries: words are runs of letters and digits.
    for piece in plain.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
        if matches!(word, "a" | "an" | "the") {
            out.push(' ');
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// F1 over words that both have, each as often as both have it.
pub(super) fn f1(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (normalised(answer), normalised(reference));
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in reference.split(' ').filter(|word| !word.is_empty()) {
        *left.entry(word).or_default() += 1;
    }
    let words = |text: &str| text.split(' ').filter(|word| !word.is_empty()).count();
    let mut same = 0;
    for word in answer.split(' ') {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            same += 1;
        }
    }
    if same == 0 {
        return 0.0;
    }
    let precision = f64::from(same) / words(&answer) as f64;
    let recall = f64::from(same) / words(&reference) as f64;
    2.0 * precision * recall / (precision + recall)
}

/// The F measure of summary-level ROUGE-L over different words: for every sentence of the reference, the words of its longest common
/// subsequence with each sentence of the answer, all united.
pub(super) fn rouge_l(answer: &str, reference: &str) -> f64 {
    let (said, wanted) = (sentences(answer), sentences(reference));
    if said.is_empty() || wanted.is_empty() {
        return 0.0;
    }
    let different = |sentences: &[Vec<&str>]| sentences.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let mut common: HashSet<&str> = HashSet::new();
    for sentence in &wanted {
        for other in &said {
            common.extend(subsequence(sentence, other));
        }
    }
    let precision = common.len() as f64 / different(&said);
    let recall = common.len() as f64 / different(&wanted);
    2.0 * (precision * recall / (precision + recall + 1e-8))
}

/// Between full stops; one of white space only is one empty word.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let pieces = text[..end].split('.').filter(|sentence| !sentence.is_empty());
    pieces
        .map(|sentence| {
            let words: Vec<&str> = sentence.split_whitespace().take(MAX_SENTENCE).collect();
            if words.is_empty() { vec![""] } else { words }
        })
        .collect()
}

/// The words of the longest common subsequence that `rouge` finds: walking back it prefers to leave a word of `b`.
fn subsequence<'t>(a: &[&'t str], b: &[&str]) -> Vec<&'t str> {
    let width = b.len() + 1;
    let mut table = vec![0u16; (a.len() + 1) * width];
    for (i, left) in a.iter().enumerate() {
        for (j, right) in b.iter().enumerate() {
            table[(i + 1) * width + j + 1] =
                if left == right { table[i * width + j] + 1 } else { table[i * width + j + 1].max(table[(i + 1) * width + j]) };
        }
    }
    let (mut i, mut j, mut out) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            out.push(a[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    out
}

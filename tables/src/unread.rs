//! Keys that look like ours and are not read: a slip of the pen in a key's name must not pass for a file without tables.

use crate::Phase;
use crate::file::known_keys;
use serde_json::{Map, Value};
use std::fmt;

/// Most keys of a file that are told of.
const MOST: usize = 16;
/// Changed, missing or surplus letters that still make a key a mistyped one.
const SLIPS: usize = 2;

/// A key of a file that looks like one of the tables' and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// As it stands in the file.
    pub key: String,
    /// The key that it is a slip away from, if one is.
    pub meant: Option<String>,
}

impl Unread {
    /// Whether it may have been meant for a phase.
    pub fn concerns(&self, phase: Phase) -> bool {
        let key = self.meant.as_deref().unwrap_or(&self.key);
        let named: Vec<Phase> = Phase::ALL.into_iter().filter(|p| key.contains(p.name())).collect();
        named.is_empty() || named.contains(&phase)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.meant {
            Some(meant) => write!(f, "{} is not read: {meant} is meant?", self.key),
            None => write!(f, "{} is not read: it is none of the keys of tables", self.key),
        }
    }
}

/// The first such keys of an object.
pub(crate) fn find(object: &Map<String, Value>) -> Vec<Unread> {
    let known = known_keys();
    let looks_like = |key: &String| {
        let folded = key.to_lowercase().replace('-', "_");
        if known.contains(key) {
            return None;
        }
        let near = known.iter().filter_map(|known| Some((slips(&folded, known)?, known)));
        let meant = near.min_by_key(|(slips, _)| *slips).map(|(_, known)| known.clone());
        let ours = meant.is_some() || folded.contains("skip_softmax") || folded.contains("skipsoftmax");
        ours.then(|| Unread { key: key.clone(), meant })
    };
    object.keys().filter_map(looks_like).take(MOST).collect()
}

/// How many letters are changed, missing or surplus, up to [`SLIPS`] (Levenshtein's distance, a row at a time).
fn slips(a: &str, b: &str) -> Option<usize> {
    if a.len().abs_diff(b.len()) > SLIPS {
        return None;
    }
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
        if row.iter().all(|&slips| slips > SLIPS) {
            return None;
        }
    }
    Some(row[b.len()]).filter(|&slips| slips <= SLIPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(object: Value) -> Vec<(String, Option<String>)> {
        find(object.as_object().unwrap()).into_iter().map(|u| (u.key, u.meant)).collect()
    }

    #[test]
    fn a_slip_is_told_with_the_key_that_is_meant() {
        for (key, meant) in [
            ("skip_softmax_prefil_scale_table", "skip_softmax_prefill_scale_table"),
            ("skip_sofmax_decode_scale_tables", "skip_softmax_decode_scale_tables"),
            ("skip-softmax-prefill-scale-table", "skip_softmax_prefill_scale_table"),
            ("Skip_Softmax_Decode_Calibration", "skip_softmax_decode_calibration"),
            ("skip_softmax_prefill_target_sparisty", "skip_softmax_prefill_target_sparsity"),
            ("skip_softmax_pricelist", "skip_softmax_price_list"),
        ] {
            assert_eq!(found(json!({key: 1})), [(key.to_owned(), Some(meant.to_owned()))]);
        }
    }

    #[test]
    fn what_only_looks_like_ours_is_told_and_what_does_not_is_not() {
        assert_eq!(found(json!({"skip_softmax_scale_table": 1})), [("skip_softmax_scale_table".to_owned(), None)]);
        assert_eq!(found(json!({"hidden_size": 1, "use_cache": true, "attention_dropout": 0, "": 1, "ß": 1})), []);
        let all: Map<String, Value> = known_keys().into_iter().map(|key| (key, Value::Null)).collect();
        assert_eq!(find(&all), []);
    }

    #[test]
    fn a_file_full_of_them_is_told_in_part() {
        let many: Map<String, Value> = (0..1000).map(|i| (format!("skip_softmax_{i}"), Value::Null)).collect();
        assert_eq!(find(&many).len(), MOST);
    }

    #[test]
    fn a_key_concerns_the_phase_it_names() {
        let unread = |key: &str| find(json!({key: 1}).as_object().unwrap()).remove(0);
        let of = |key: &str| Phase::ALL.map(|phase| unread(key).concerns(phase));
        assert_eq!(of("skip_softmax_prefil_scale_table"), [true, false]);
        assert_eq!(of("skip_softmax_decode_scale_tabel"), [false, true]);
        assert_eq!(of("skip_softmax_scale_table"), [true, true]);
    }
}

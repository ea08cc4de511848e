//! SentencePiece BPE. GGUF has a score for each piece instead of merges; the merges are those that transformers derives from the scores.

use super::{BYTE, CONTROL, NORMAL, Parts, UNKNOWN, USER_DEFINED, Vocabulary};
use crate::ImportError;
use crate::gguf::Gguf;
use serde_json::{Value, json};
use std::collections::HashMap;

pub(super) fn parts(gguf: &Gguf, vocabulary: &Vocabulary<'_>, unk: Option<u32>) -> Result<Parts, ImportError> {
    let key = "tokenizer.ggml.scores";
    let scores = gguf.floats(key)?;
    if scores.len() != vocabulary.tokens.len() || scores.iter().any(|score| score.is_nan()) {
        return Err(ImportError::key(key, format!("not a score for each of {} tokens", vocabulary.tokens.len())));
    }
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prefix = gguf.flag_or("tokenizer.ggml.add_space_prefix", true)?;
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        normalizer: if prefix {
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]})
        } else {
            spaces
        },
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": unk.map(|id| vocabulary.tokens[id as usize]),
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.map(&[NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE], "SentencePiece")?,
            "merges": merges(vocabulary, &scores),
        }),
        add_bos: true,
    })
}

/// All pairs of pieces that join to a piece: the better the score of that, the earlier; of equal ones the longest first, then as the pieces stand.
fn merges(vocabulary: &Vocabulary<'_>, scores: &[f32]) -> Vec<Value> {
    let pieces = || vocabulary.iter().filter(|(.., kind)| *kind == NORMAL);
    let ids: HashMap<&str, usize> = pieces().map(|(id, piece, _)| (piece, id)).collect();
    let mut pairs = Vec::new();
    for (id, piece, _) in pieces() {
        let (from, chars) = (pairs.len(), piece.chars().count());
        for (left_chars, (at, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                pairs.push((scores[id], left_chars, chars - left_chars, left, right));
            }
        }
        pairs[from..].sort_by_key(|&(.., left, right)| (left, right));
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((b.1, b.2).cmp(&(a.1, a.2))));
    pairs.iter().map(|&(.., left, right)| json!([vocabulary.tokens[left], vocabulary.tokens[right]])).collect()
}

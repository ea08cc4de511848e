//! Byte-level BPE. GGUF names the splitting rules instead of holding them (`tokenizer.ggml.pre`); the rules here are those of the models' own
//! files.

use super::{CONTROL, NORMAL, Parts, USER_DEFINED, Vocabulary};
use crate::ImportError;
use crate::gguf::Gguf;
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) fn parts(gguf: &Gguf, vocabulary: &Vocabulary<'_>) -> Result<Parts, ImportError> {
    let rules = Rules::of(gguf.text("tokenizer.ggml.pre")?)?;
    Ok(Parts {
        normalizer: rules.normalizer,
        pre_tokenizer: rules.pre_tokenizer,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": rules.ignore_merges,
            "vocab": vocabulary.map(&[NORMAL, CONTROL, USER_DEFINED], "byte-level BPE")?,
            "merges": merges(gguf, &vocabulary.tokens)?,
        }),
        add_bos: rules.add_bos,
    })
}

/// Splitting rules of one family of tokenizers.
struct Rules {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
    add_bos: bool,
}

impl Rules {
    fn of(pre: &str) -> Result<Self, ImportError> {
        let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let split = |pattern: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                byte_level(false),
            ]})
        };
        let plain = |pre_tokenizer: Value| Self { normalizer: Value::Null, pre_tokenizer, ignore_merges: false, add_bos: false };
        Ok(match pre {
            "gpt-2" => plain(byte_level(true)),
            "smollm" | "starcoder" | "refact" => {
                plain(json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(true)]}))
            }
            "qwen2" | "deepseek-r1-qwen" => Self { normalizer: json!({"type": "NFC"}), ..plain(split(QWEN2)) },
            "tekken" => Self { ignore_merges: true, add_bos: true, ..plain(split(TEKKEN)) },
            "llama-bpe" | "llama3" | "llama-v3" => Self { ignore_merges: true, add_bos: true, ..plain(split(LLAMA3)) },
            other => {
                return Err(ImportError::Unsupported {
                    what: "pre-tokenizer",
                    name: other.to_owned(),
                    supported: "gpt-2, smollm, starcoder, refact, qwen2, deepseek-r1-qwen, llama-bpe, tekken",
                });
            }
        })
    }
}

/// Single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Single digits; words begin where small letters end.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pairs in order of rank; both halves and their union are tokens.
fn merges(gguf: &Gguf, tokens: &[&str]) -> Result<Vec<Value>, ImportError> {
    let key = "tokenizer.ggml.merges";
    let known: HashSet<&str> = tokens.iter().copied().collect();
    gguf.texts(key)?
        .into_iter()
        .enumerate()
        .map(|(rank, merge)| match merge.split_once(' ') {
            Some((left, right)) if known.contains(left) && known.contains(right) && known.contains(format!("{left}{right}").as_str()) => {
                Ok(json!([left, right]))
            }
            _ => Err(ImportError::key(key, format!("merge {rank} does not join two tokens to a third"))),
        })
        .collect()
}

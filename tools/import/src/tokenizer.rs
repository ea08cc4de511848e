//! tokenizer.json and its companions from a GGUF file's byte-level BPE vocabulary.
//!
//! GGUF names the splitting rules instead of holding them (`tokenizer.ggml.pre`); the rules here are those of the models' own files.

use crate::ImportError;
use crate::gguf::Gguf;
use crate::model::Model;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Token types of GGUF.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// Control tokens that end an answer, besides the one GGUF names.
const ENDS: [&str; 7] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "</s>"];

/// The tokenizer's files.
pub(crate) struct Tokenizer {
    /// tokenizer.json.
    pub tokenizer: Value,
    /// tokenizer_config.json.
    pub config: Value,
    /// special_tokens_map.json.
    pub special_map: Value,
    /// generation_config.json: which tokens begin, end and pad.
    pub generation: Value,
}

/// Reads the vocabulary.
pub(crate) fn convert(gguf: &Gguf, model: &Model) -> Result<Tokenizer, ImportError> {
    let kind = gguf.text("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(ImportError::Unsupported { what: "tokenizer", name: kind.to_owned(), supported: "gpt2 (byte-level BPE)" });
    }
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    if tokens.len() > model.vocab {
        return Err(ImportError::key("tokenizer.ggml.tokens", format!("{} tokens, {} embeddings", tokens.len(), model.vocab)));
    }
    let types = gguf.wholes("tokenizer.ggml.token_type")?;
    if types.len() != tokens.len() {
        return Err(ImportError::key("tokenizer.ggml.token_type", format!("{} types for {} tokens", types.len(), tokens.len())));
    }
    let special = Special::read(gguf, tokens.len())?;
    let pre = gguf.text("tokenizer.ggml.pre")?;
    let rules = Rules::of(pre)?;
    let add_bos = gguf.flag_or("tokenizer.ggml.add_bos_token", rules.add_bos)?;
    let added = added_tokens(&tokens, &types);
    let bos = special.bos.map(|id| (id, tokens[id as usize]));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": rules.normalizer,
        "pre_tokenizer": rules.pre_tokenizer,
        "post_processor": bos.filter(|_| add_bos).map(|(id, token)| begin_with(token, id)),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": rules.ignore_merges,
            "vocab": vocabulary(&tokens, &types)?,
            "merges": merges(gguf, &tokens)?,
        }
    });
    let template = gguf.text_opt("tokenizer.chat_template")?;
    let names = special.names(&tokens);
    Ok(Tokenizer {
        tokenizer,
        config: config(&added, &names, template, model, add_bos),
        special_map: Value::Object(names),
        generation: special.generation(&tokens, &types),
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
            "llama-bpe" | "llama3" | "llama-v3" => Self { ignore_merges: true, add_bos: true, ..plain(split(LLAMA3)) },
            other => {
                return Err(ImportError::Unsupported {
                    what: "pre-tokenizer",
                    name: other.to_owned(),
                    supported: "gpt-2, smollm, starcoder, refact, qwen2, deepseek-r1-qwen, llama-bpe",
                });
            }
        })
    }
}

/// Single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tokens matched as a whole, before splitting.
fn added_tokens(tokens: &[&str], types: &[u64]) -> Vec<Value> {
    let mut added = Vec::new();
    for (id, (token, &kind)) in tokens.iter().zip(types).enumerate() {
        if (kind == CONTROL || kind == USER_DEFINED) && !token.is_empty() {
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind == CONTROL}));
        }
    }
    added
}

/// Token to id; unused tokens (padding of the embedding) are left out.
fn vocabulary(tokens: &[&str], types: &[u64]) -> Result<Map<String, Value>, ImportError> {
    let key = "tokenizer.ggml.tokens";
    let mut vocab = Map::with_capacity(tokens.len());
    for (id, (token, &kind)) in tokens.iter().zip(types).enumerate() {
        if kind == UNUSED {
            continue;
        }
        if kind != NORMAL && kind != CONTROL && kind != USER_DEFINED {
            return Err(ImportError::key("tokenizer.ggml.token_type", format!("token {id} has type {kind}, which byte-level BPE has not")));
        }
        if vocab.insert((*token).to_owned(), json!(id)).is_some() {
            return Err(ImportError::key(key, format!("token {id} stands twice")));
        }
    }
    Ok(vocab)
}

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

fn begin_with(token: &str, id: u32) -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": token, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}})
}

/// Token ids with a role.
struct Special {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    pad: Option<u32>,
    unk: Option<u32>,
}

impl Special {
    fn read(gguf: &Gguf, vocab: usize) -> Result<Self, ImportError> {
        let id = |role: &str| gguf.token_opt(&format!("tokenizer.ggml.{role}_token_id"), vocab);
        Ok(Self { bos: id("bos")?, eos: id("eos")?, eot: id("eot")?, pad: id("padding")?, unk: id("unknown")? })
    }

    fn names(&self, tokens: &[&str]) -> Map<String, Value> {
        [("bos_token", self.bos), ("eos_token", self.eos), ("pad_token", self.pad), ("unk_token", self.unk)]
            .into_iter()
            .filter_map(|(role, id)| Some((role.to_owned(), json!(tokens[id? as usize]))))
            .collect()
    }

    fn generation(&self, tokens: &[&str], types: &[u64]) -> Value {
        let mut eos: Vec<u32> = self.eos.into_iter().chain(self.eot).collect();
        let named = (0..tokens.len()).filter(|&id| types[id] == CONTROL && ENDS.contains(&tokens[id]));
        eos.extend(named.map(|id| id as u32));
        let mut seen = HashSet::new();
        eos.retain(|&id| seen.insert(id));
        let mut map = Map::new();
        for (key, id) in [("bos_token_id", self.bos), ("pad_token_id", self.pad)] {
            if let Some(id) = id {
                map.insert(key.into(), json!(id));
            }
        }
        map.insert("eos_token_id".into(), json!(eos));
        Value::Object(map)
    }
}

fn config(added: &[Value], names: &Map<String, Value>, template: Option<&str>, model: &Model, add_bos: bool) -> Value {
    let mut config = Map::new();
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("add_bos_token".into(), json!(add_bos));
    config.insert("add_prefix_space".into(), json!(false));
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    config.insert("model_max_length".into(), json!(model.context()));
    config.extend(names.clone());
    let mut decoder = Map::new();
    for token in added {
        let mut entry = token.clone();
        if let Some(map) = entry.as_object_mut() {
            map.remove("id");
        }
        decoder.insert(token["id"].to_string(), entry);
    }
    config.insert("added_tokens_decoder".into(), Value::Object(decoder));
    if let Some(template) = template {
        config.insert("chat_template".into(), json!(template));
    }
    Value::Object(config)
}

//! tokenizer.json and its companions from a GGUF file's vocabulary.

mod byte_level;
mod sentence_piece;

use crate::ImportError;
use crate::gguf::Gguf;
use crate::model::Model;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Token types of GGUF.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;
const BYTE: u64 = 6;

/// Control tokens that end an answer, besides the one GGUF names.
const ENDS: [&str; 8] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>"];

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
    let vocabulary = Vocabulary::read(gguf, model)?;
    let special = Special::read(gguf, vocabulary.tokens.len())?;
    let parts = match gguf.text("tokenizer.ggml.model")? {
        "gpt2" => byte_level::parts(gguf, &vocabulary)?,
        "llama" => sentence_piece::parts(gguf, &vocabulary, special.unk)?,
        other => {
            return Err(ImportError::Unsupported {
                what: "tokenizer",
                name: other.to_owned(),
                supported: "gpt2 (byte-level BPE), llama (SentencePiece BPE)",
            });
        }
    };
    let add_bos = gguf.flag_or("tokenizer.ggml.add_bos_token", parts.add_bos)?;
    let added = vocabulary.added();
    let bos = special.bos.map(|id| (id, vocabulary.tokens[id as usize]));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": bos.filter(|_| add_bos).map(|(id, token)| begin_with(token, id)),
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let template = gguf.text_opt("tokenizer.chat_template")?;
    let names = special.names(&vocabulary.tokens);
    Ok(Tokenizer {
        tokenizer,
        config: config(&added, &names, template, model, add_bos),
        special_map: Value::Object(names),
        generation: special.generation(&vocabulary),
    })
}

/// What depends on the kind of tokenizer.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
    /// Whether a begin token is put first where the file does not say.
    add_bos: bool,
}

/// Tokens and their types, by id.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u64>,
}

impl<'a> Vocabulary<'a> {
    fn read(gguf: &'a Gguf, model: &Model) -> Result<Self, ImportError> {
        let tokens = gguf.texts("tokenizer.ggml.tokens")?;
        if tokens.len() > model.vocab {
            return Err(ImportError::key("tokenizer.ggml.tokens", format!("{} tokens, {} embeddings", tokens.len(), model.vocab)));
        }
        let types = gguf.wholes("tokenizer.ggml.token_type")?;
        if types.len() != tokens.len() {
            return Err(ImportError::key("tokenizer.ggml.token_type", format!("{} types for {} tokens", types.len(), tokens.len())));
        }
        Ok(Self { tokens, types })
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &'a str, u64)> {
        self.tokens.iter().zip(&self.types).enumerate().map(|(id, (token, &kind))| (id, *token, kind))
    }

    /// Tokens matched as a whole, before splitting.
    fn added(&self) -> Vec<Value> {
        let whole = self.iter().filter(|(_, token, kind)| matches!(*kind, CONTROL | UNKNOWN | USER_DEFINED) && !token.is_empty());
        let entry = |(id, token, kind): (usize, &str, u64)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind != USER_DEFINED})
        };
        whole.map(entry).collect()
    }

    /// Token to id, of the types that a kind of tokenizer has; unused tokens (padding of the embedding) are left out.
    fn map(&self, kinds: &[u64], tokenizer: &str) -> Result<Map<String, Value>, ImportError> {
        let mut map = Map::with_capacity(self.tokens.len());
        for (id, token, kind) in self.iter().filter(|(.., kind)| *kind != UNUSED) {
            if !kinds.contains(&kind) {
                let detail = format!("token {id} has type {kind}, which {tokenizer} has not");
                return Err(ImportError::key("tokenizer.ggml.token_type", detail));
            }
            if map.insert(token.to_owned(), json!(id)).is_some() {
                return Err(ImportError::key("tokenizer.ggml.tokens", format!("token {id} stands twice")));
            }
        }
        Ok(map)
    }
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

    fn generation(&self, vocabulary: &Vocabulary<'_>) -> Value {
        let mut eos: Vec<u32> = self.eos.into_iter().chain(self.eot).collect();
        let named = vocabulary.iter().filter(|(_, token, kind)| *kind == CONTROL && ENDS.contains(token));
        eos.extend(named.map(|(id, ..)| id as u32));
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

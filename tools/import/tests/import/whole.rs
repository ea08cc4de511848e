//! What comes out of a whole file.

use crate::model::{Gguf, HEAD, HIDDEN};
use candle_core::quantized::gguf_file::Value;
use half::bf16;
use safetensors::SafeTensors;
use skip_import::{ImportError, import};
use std::path::Path;
use tokenizers::Tokenizer;

pub fn imported(gguf: &Gguf) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = gguf.write(dir.path());
    import(&path, &dir.path().join("out"), |_| {}).unwrap();
    dir
}

pub fn json(dir: &Path, name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.join("out").join(name)).unwrap()).unwrap()
}

/// A tensor's values and shape.
pub fn tensor(dir: &Path, name: &str) -> (Vec<f32>, Vec<usize>) {
    let bytes = std::fs::read(dir.join("out/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor(name).unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::BF16);
    let values = view.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
    (values, view.shape().to_vec())
}

pub fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect()
}

#[test]
fn weights_are_the_dequantised_values_rounded_to_bfloat16() {
    let gguf = Gguf::llama();
    let dir = imported(&gguf);
    for (source, target, shape) in [
        ("token_embd.weight", "model.embed_tokens.weight", vec![300, HIDDEN]),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight", vec![2 * HEAD, HIDDEN]),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", vec![HIDDEN, 96]),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight", vec![HIDDEN]),
    ] {
        assert_eq!(tensor(dir.path(), target), (rounded(&gguf.dequantized(source)), shape), "{target}");
    }
}

#[test]
fn llamas_q_and_k_go_back_to_halves_and_qwens_stay() {
    for (gguf, permuted) in [(Gguf::llama(), true), (Gguf::qwen2(), false)] {
        let dir = imported(&gguf);
        for part in ["q", "k"] {
            let stored = rounded(&gguf.dequantized(&format!("blk.0.attn_{part}.weight")));
            let (found, shape) = tensor(dir.path(), &format!("model.layers.0.self_attn.{part}_proj.weight"));
            for row in 0..shape[0] {
                let (head, i) = (row / HEAD, row % HEAD);
                // Row i of the first half was stored at 2i, of the second half at 2i + 1.
                let from = if permuted { head * HEAD + i % (HEAD / 2) * 2 + i / (HEAD / 2) } else { row };
                assert_eq!(found[row * HIDDEN..][..HIDDEN], stored[from * HIDDEN..][..HIDDEN], "{part} row {row}");
            }
        }
    }
}

#[test]
fn qwens_biases_and_head_are_there_and_llamas_head_is_tied() {
    let dir = imported(&Gguf::qwen2());
    assert_eq!(tensor(dir.path(), "model.layers.0.self_attn.k_proj.bias").1, [2 * HEAD]);
    assert_eq!(tensor(dir.path(), "lm_head.weight").1, [300, HIDDEN]);
    assert_eq!(json(dir.path(), "config.json")["tie_word_embeddings"], false);
    let dir = imported(&Gguf::llama());
    assert_eq!(json(dir.path(), "config.json")["tie_word_embeddings"], true);
}

#[test]
fn the_config_says_what_the_metadata_says() {
    let dir = imported(&Gguf::llama());
    let config = json(dir.path(), "config.json");
    for (field, value) in [
        ("hidden_size", 64),
        ("num_hidden_layers", 1),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 16),
        ("intermediate_size", 96),
        ("vocab_size", 300),
        ("max_position_embeddings", 128),
    ] {
        assert_eq!(config[field], value, "{field}");
    }
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["rms_norm_eps"], 1e-5, "the shortest decimal of the float32");
    assert_eq!(config["rope_theta"], 100000.0);
    assert!(config.as_object().unwrap().keys().all(|key| !key.starts_with("skip_softmax")), "no ladder for an unknown file");
    let generation = json(dir.path(), "generation_config.json");
    assert_eq!(generation["eos_token_id"], serde_json::json!([259, 260]), "the end of a turn and of a text");
    assert_eq!(generation["bos_token_id"], 258);
}

#[test]
fn the_tokenizer_splits_merges_and_knows_its_special_tokens() {
    let dir = imported(&Gguf::llama());
    let tokenizer = Tokenizer::from_file(dir.path().join("out/tokenizer.json")).unwrap();
    let ids = |text: &str| tokenizer.encode(text, true).unwrap().get_ids().to_vec();
    assert_eq!(ids("abcab"), [257, 256]);
    assert_eq!(ids("<|im_end|><tool>a"), [259, 261, 97]);
    assert_eq!(ids("12"), [49, 50], "digits one by one");
    assert_eq!(tokenizer.get_vocab_size(true), 262, "padding is no token");
    let added = tokenizer.get_added_tokens_decoder();
    assert!(added[&259].special && !added[&261].special);
    let config = json(dir.path(), "tokenizer_config.json");
    assert_eq!(config["chat_template"], "{{ messages[0].content }}");
    assert_eq!(config["eos_token"], "<|im_end|>");
}

#[test]
fn a_begin_token_is_put_first_where_the_file_asks_for_it() {
    let dir = imported(&Gguf::llama().with("tokenizer.ggml.add_bos_token", Value::Bool(true)));
    let tokenizer = Tokenizer::from_file(dir.path().join("out/tokenizer.json")).unwrap();
    assert_eq!(tokenizer.encode("a", true).unwrap().get_ids(), [258, 97]);
    assert_eq!(tokenizer.encode("a", false).unwrap().get_ids(), [97]);
}

#[test]
fn every_known_pre_tokenizer_gives_a_tokenizer_that_loads() {
    for pre in ["gpt-2", "smollm", "starcoder", "refact", "qwen2", "deepseek-r1-qwen", "llama-bpe", "tekken"] {
        let gguf = Gguf::llama().with("tokenizer.ggml.pre", Value::String(pre.into()));
        let dir = imported(&gguf.with("tokenizer.ggml.add_bos_token", Value::Bool(false)));
        let tokenizer = Tokenizer::from_file(dir.path().join("out/tokenizer.json")).unwrap();
        let ids = tokenizer.encode("abc 12", true).unwrap().get_ids().to_vec();
        assert_eq!(ids, [257, 32, 49, 50], "{pre}");
    }
}

/// The divisors of Llama 3.2 (factor 32), made with the published formula.
#[test]
fn llama3_frequency_divisors_become_rope_scaling() {
    let divisors: Vec<f32> = (0..8)
        .map(|i| {
            let wavelength = std::f64::consts::TAU * 100000f64.powf(f64::from(i) / 8.0);
            let smooth = ((8192.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / 32.0 + smooth)) as f32
        })
        .collect();
    assert!(divisors[0] == 1.0 && divisors[7] == 32.0);
    let mut gguf = Gguf::llama();
    let tensor = |values: &[f32]| candle_core::Tensor::new(values, &candle_core::Device::Cpu).unwrap();
    gguf.tensors.insert("rope_freqs.weight".into(), tensor(&divisors));
    let dir = imported(&gguf);
    let scaling = &json(dir.path(), "config.json")["rope_scaling"];
    assert_eq!((scaling["rope_type"].as_str(), scaling["factor"].as_f64()), (Some("llama3"), Some(32.0)));

    gguf.tensors.insert("rope_freqs.weight".into(), tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    let path = gguf.write(dir.path());
    let error = import(&path, &dir.path().join("other"), |_| {}).unwrap_err();
    assert!(matches!(&error, ImportError::Tensor { name, .. } if name == "rope_freqs.weight"), "{error}");
}

#[test]
fn progress_ends_at_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = Gguf::llama().write(dir.path());
    let mut last = None;
    let report = import(&path, &dir.path().join("out"), |p| last = Some(p)).unwrap();
    let last = last.unwrap();
    assert_eq!((last.stage, last.done, last.total), (skip_import::Stage::Weights, report.bytes, report.bytes));
    assert_eq!(std::fs::metadata(dir.path().join("out/model.safetensors")).unwrap().len(), report.bytes);
    assert_eq!(report.checkpoint_hash, skip_tables::Digest::of_checkpoint(&dir.path().join("out")).unwrap());
}

//! What is particular to a family: names of tensors, norms, rotations, windows, and SentencePiece vocabularies.

use crate::model::{Gguf, HEAD, HIDDEN};
use crate::whole::{imported, json, rounded, tensor};
use candle_core::quantized::gguf_file::Value;
use serde_json::json;
use skip_import::{ImportError, import};
use tokenizers::Tokenizer;

fn config(gguf: &Gguf) -> serde_json::Value {
    json(imported(gguf).path(), "config.json")
}

fn error(gguf: &Gguf) -> ImportError {
    let dir = tempfile::tempdir().unwrap();
    let path = gguf.write(dir.path());
    import(&path, &dir.path().join("out"), |_| {}).unwrap_err()
}

#[test]
fn a_qwen3_keeps_its_rows_and_has_norms_of_q_and_k() {
    let gguf = Gguf::qwen3();
    let dir = imported(&gguf);
    for part in ["q", "k"] {
        let stored = rounded(&gguf.dequantized(&format!("blk.0.attn_{part}_norm.weight")));
        assert_eq!(tensor(dir.path(), &format!("model.layers.0.self_attn.{part}_norm.weight")), (stored, vec![HEAD]));
    }
    let stored = rounded(&gguf.dequantized("blk.0.attn_q.weight"));
    assert_eq!(tensor(dir.path(), "model.layers.0.self_attn.q_proj.weight").0, stored);
    assert_eq!(json(dir.path(), "config.json")["model_type"], "qwen3");
}

#[test]
fn a_gemma3_has_its_norms_less_the_one_that_is_added_to_them() {
    let gguf = Gguf::gemma3();
    let dir = imported(&gguf);
    for (source, target, width) in [
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", HIDDEN),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight", HEAD),
        ("blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight", HIDDEN),
        ("blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight", HIDDEN),
        ("blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight", HIDDEN),
        ("output_norm.weight", "model.norm.weight", HIDDEN),
    ] {
        let less: Vec<f32> = gguf.dequantized(source).iter().map(|x| x - 1.0).collect();
        assert_eq!(tensor(dir.path(), target), (rounded(&less), vec![width]), "{target}");
    }
    let up = rounded(&gguf.dequantized("blk.0.ffn_up.weight"));
    assert_eq!(tensor(dir.path(), "model.layers.0.mlp.up_proj.weight").0, up, "matrices as they are");
}

#[test]
fn a_gemma3_s_config_says_what_its_file_leaves_to_be_known() {
    let c = config(&Gguf::gemma3());
    for (field, value) in [
        ("model_type", json!("gemma3_text")),
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("sliding_window", json!(32)),
        ("layer_types", json!(["sliding_attention"])),
        ("rope_theta", json!(100000.0)),
        ("rope_local_base_freq", json!(10000.0)),
        ("query_pre_attn_scalar", json!(16)),
        ("tie_word_embeddings", json!(true)),
        ("eos_token_id", json!([1, 269])),
    ] {
        assert_eq!(c[field], value, "{field}");
    }
    let c = config(
        &Gguf::gemma3()
            .with("gemma3.rope.freq_base_swa", Value::F32(5000.0))
            .with("gemma3.attention.sliding_window_pattern", Value::U32(1)),
    );
    assert_eq!((&c["rope_local_base_freq"], &c["layer_types"]), (&json!(5000.0), &json!(["full_attention"])));
    let listed = |list: &[bool]| Value::Array(list.iter().map(|&b| Value::Bool(b)).collect());
    let c = config(&Gguf::gemma3().with("gemma3.attention.sliding_window_pattern", listed(&[false])));
    assert_eq!(c["layer_types"], json!(["full_attention"]));
    let wrong = error(&Gguf::gemma3().with("gemma3.attention.sliding_window_pattern", listed(&[true, false])));
    assert!(matches!(&wrong, ImportError::Key { key, .. } if key == "gemma3.attention.sliding_window_pattern"), "{wrong}");
    let missing = error(&Gguf::gemma3().without("gemma3.attention.sliding_window"));
    assert!(matches!(&missing, ImportError::MissingKey { key } if key == "gemma3.attention.sliding_window"), "{missing}");
}

#[test]
fn a_llama_with_a_window_is_a_mistral() {
    let c = config(&Gguf::llama().with("llama.attention.sliding_window", Value::U32(64)));
    assert_eq!((&c["model_type"], &c["sliding_window"]), (&json!("mistral"), &json!(64)));
    assert_eq!(config(&Gguf::llama())["model_type"], "llama");
}

#[test]
fn rotation_scaling_is_carried_over() {
    let with = |keys: &[(&str, Value)]| {
        keys.iter().fold(Gguf::llama(), |gguf, (key, value)| gguf.with(&format!("llama.rope.{key}"), value.clone()))
    };
    let text = |t: &str| Value::String(t.into());
    let factor = ("scaling.factor", Value::F32(4.0));
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    assert_eq!(config(&with(&[("scaling.type", text("linear")), factor.clone()]))["rope_scaling"], linear);
    assert_eq!(config(&with(std::slice::from_ref(&factor)))["rope_scaling"], linear, "no type means linear");
    assert_eq!(config(&with(&[("scale_linear", Value::F32(4.0))]))["rope_scaling"], linear, "as older files have it");
    assert_eq!(config(&with(&[("scaling.type", text("none"))]))["rope_scaling"], json!(null));
    let original = ("scaling.original_context_length", Value::U32(32));
    let yarn = [("scaling.type", text("yarn")), factor.clone(), original];
    let plain = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    assert_eq!(config(&with(&yarn))["rope_scaling"], plain);
    let more = [("scaling.yarn_beta_fast", Value::F32(16.0)), ("scaling.attn_factor", Value::F32(0.5))];
    let scaling = &config(&with(&[&yarn[..], &more].concat()))["rope_scaling"];
    let attention = scaling["attention_factor"].as_f64().unwrap();
    assert_eq!(scaling["beta_fast"], 16.0);
    assert!((attention - 0.5 * (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12, "{attention}");

    let wrong = error(&with(&yarn[..2]));
    assert!(matches!(&wrong, ImportError::MissingKey { key } if key == "llama.rope.scaling.original_context_length"), "{wrong}");
    let wrong = error(&with(&[&yarn[..], &[("scaling.yarn_log_multiplier", Value::F32(0.1))]].concat()));
    assert!(matches!(&wrong, ImportError::Key { key, .. } if key == "llama.rope.scaling.yarn_log_multiplier"), "{wrong}");
}

/// Ids of the pieces in the test model: bc 260, ab 261, abc 262, ▁a 263, ▁ 264, a 265, b 266, c 267; 268 is three spaces.
#[test]
fn a_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes() {
    let dir = imported(&Gguf::gemma3());
    let tokenizer = Tokenizer::from_file(dir.path().join("out/tokenizer.json")).unwrap();
    let ids = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    assert_eq!(ids("abc"), [262], "a and bc");
    assert_eq!(ids("abb"), [261, 266]);
    assert_eq!(ids("b ab"), [266, 264, 261], "ab is the better pair");
    assert_eq!(ids("b ac"), [266, 263, 267]);
    assert_eq!(ids("a   b"), [265, 268, 266], "a run of spaces is a token");
    assert_eq!(ids("é<end_of_turn>"), [4 + 0xc3, 4 + 0xa9, 269]);
    assert_eq!(tokenizer.encode("a", true).unwrap().get_ids(), [2, 265], "begins with <bos> unless the file says otherwise");
    assert_eq!(tokenizer.decode(&[262, 264, 4 + 0xc3, 4 + 0xa9], true).unwrap(), "abc é");
    let added = tokenizer.get_added_tokens_decoder();
    assert!(added[&269].special && added[&3].special && !added[&268].special);
}

#[test]
fn a_space_is_put_first_where_the_file_does_not_forbid_it() {
    let dir = imported(&Gguf::gemma3().without("tokenizer.ggml.add_space_prefix"));
    let tokenizer = Tokenizer::from_file(dir.path().join("out/tokenizer.json")).unwrap();
    assert_eq!(tokenizer.encode("ac", false).unwrap().get_ids(), [263, 267]);
    assert_eq!(tokenizer.decode(&[263, 267], true).unwrap(), "ac");
}

#[test]
fn scores_that_are_missing_or_too_few_are_refused() {
    let missing = error(&Gguf::gemma3().without("tokenizer.ggml.scores"));
    assert!(matches!(&missing, ImportError::MissingKey { key } if key == "tokenizer.ggml.scores"), "{missing}");
    let few = error(&Gguf::gemma3().with("tokenizer.ggml.scores", Value::Array(vec![Value::F32(0.0); 299])));
    assert!(matches!(&few, ImportError::Key { key, .. } if key == "tokenizer.ggml.scores"), "{few}");
}

//! What each family has beside a llama, and that what is missing or too much is named.

use super::*;
use skip_kernels::backend::Activation;

fn qwen3() -> Folder {
    let mut folder = Folder::new().with("model_type", json!("qwen3"));
    for n in 0..2 {
        for part in ["q", "k"] {
            folder.shapes.insert(format!("model.layers.{n}.self_attn.{part}_norm.weight"), vec![4]);
        }
    }
    folder
}

fn gemma3() -> Folder {
    let mut folder =
        qwen3().with("model_type", json!("gemma3_text")).with("sliding_window", json!(16)).with("query_pre_attn_scalar", json!(16));
    folder.config.as_object_mut().unwrap().remove("tie_word_embeddings");
    for n in 0..2 {
        for part in ["pre", "post"] {
            folder.shapes.insert(format!("model.layers.{n}.{part}_feedforward_layernorm.weight"), vec![8]);
        }
    }
    folder
}

#[test]
fn a_qwen3_has_norms_of_q_and_k() {
    let folder = qwen3();
    folder.write();
    let checkpoint = folder.open().unwrap();
    let layer = checkpoint.layer(0).unwrap();
    assert_eq!(layer.qk_norm, Some((vec![1.0; 4], vec![1.0; 4])));
    assert!(layer.qkv_bias.is_none() && layer.post_norms.is_none());
}

#[test]
fn a_gemma3_has_norms_around_everything_one_above_what_is_stored() {
    let mut folder = gemma3();
    folder.zero = Some("model.layers.1.pre_feedforward_layernorm.weight");
    folder.write();
    let checkpoint = folder.open().unwrap();
    let layer = checkpoint.layer(1).unwrap();
    assert_eq!(layer.qk_norm, Some((vec![2.0; 4], vec![2.0; 4])));
    assert_eq!(layer.post_norms, Some((vec![2.0; 8], vec![2.0; 8])));
    assert_eq!((layer.mlp_norm, layer.input_norm), (vec![1.0; 8], vec![2.0; 8]));
    assert_eq!(checkpoint.final_norm().unwrap(), [2.0; 8]);
    let a = checkpoint.architecture();
    assert_eq!((a.activation, a.tied, a.attention_scale, a.embedding_scale), (Activation::GeluTanh, true, 0.25, 8f32.sqrt()));
    assert_eq!(a.window(0).map(|w| w.keys), Some(16));
    assert_eq!(a.window(2), None);
}

#[test]
fn a_mistral_is_a_llama_with_a_window() {
    let folder = Folder::new().with("model_type", json!("mistral")).with("sliding_window", json!(16));
    folder.write();
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.architecture().window(1).map(|w| w.keys), Some(16));
    assert_eq!(checkpoint.architecture().attention_scale, 0.5);
}

#[test]
fn yarn_stretches_the_longest_sequence() {
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let folder = Folder::new().with("rope_scaling", yarn);
    folder.write();
    assert_eq!(folder.open().unwrap().architecture().max_position_embeddings, 256);
}

#[test]
fn norms_that_are_missing_or_that_the_decoder_would_leave_out_are_named() {
    for (family, part) in [
        (qwen3 as fn() -> Folder, "self_attn.k_norm.weight"),
        (gemma3, "self_attn.q_norm.weight"),
        (gemma3, "post_attention_layernorm.weight"),
        (gemma3, "pre_feedforward_layernorm.weight"),
        (gemma3, "post_feedforward_layernorm.weight"),
    ] {
        let mut folder = family();
        let missing = format!("model.layers.1.{part}");
        folder.shapes.remove(&missing).unwrap();
        let error = folder.error();
        assert!(matches!(&error, CheckpointError::TensorMissing { name } if *name == missing), "{error}");
    }
    for (family, name) in [
        (Folder::new as fn() -> Folder, "model.layers.0.self_attn.q_norm.weight"),
        (qwen3, "model.layers.0.post_feedforward_layernorm.weight"),
        (qwen3, "model.layers.2.input_layernorm.weight"),
        (gemma3, "model.layers.0.self_attn.v_norm.weight"),
        (gemma3, "vision_tower.weight"),
    ] {
        let mut folder = family();
        folder.shapes.insert(name.into(), vec![8]);
        let error = folder.error();
        assert!(matches!(&error, CheckpointError::UnexpectedTensor { name: n, .. } if n == name), "{error}");
    }
}

#[test]
fn frequencies_that_old_files_carry_are_passed_over() {
    let mut folder = Folder::new();
    folder.shapes.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![2]);
    folder.write();
    folder.open().unwrap();
}

#[test]
fn what_gemmas_do_not_have_is_refused_by_field() {
    for (field, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("use_bidirectional_attention", json!(true)),
        ("sliding_window", json!(null)),
        ("query_pre_attn_scalar", json!(0)),
    ] {
        let error = gemma3().with(field, value).error();
        assert!(names_field(&error, field), "{field}: {error}");
    }
}

#[test]
fn families_that_are_not_known_are_refused_by_name() {
    for name in ["gemma3", "gemma2", "qwen3_moe", "mistral3", "phi3", ""] {
        let error = Folder::new().with("model_type", json!(name)).error();
        assert!(matches!(&error, CheckpointError::Unsupported { name: n, .. } if n == name), "{error}");
    }
}

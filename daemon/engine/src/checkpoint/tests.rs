//! One broken folder a test: the error names what is wrong with it.

mod families;
mod heads;

use super::*;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use skip_kernels::backend::WeightFormat;
use std::collections::BTreeMap;

/// A tensor to be written: its shape; all its values are 1.
type Shapes = BTreeMap<String, Vec<usize>>;

/// A llama of hidden size 8, two layers, 2/1 heads of 4, inner size 16 and 12 tokens, in memory until it is written.
struct Folder {
    dir: tempfile::TempDir,
    config: Value,
    shapes: Shapes,
    dtype: Dtype,
    /// A tensor whose values are 0 instead.
    zero: Option<&'static str>,
}

impl Folder {
    fn new() -> Self {
        let config = json!({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 12, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 2});
        let mut shapes = Shapes::new();
        shapes.insert("model.embed_tokens.weight".into(), vec![12, 8]);
        shapes.insert("model.norm.weight".into(), vec![8]);
        for n in 0..2 {
            for (part, shape) in [
                ("input_layernorm.weight", vec![8]),
                ("self_attn.q_proj.weight", vec![8, 8]),
                ("self_attn.k_proj.weight", vec![4, 8]),
                ("self_attn.v_proj.weight", vec![4, 8]),
                ("self_attn.o_proj.weight", vec![8, 8]),
                ("post_attention_layernorm.weight", vec![8]),
                ("mlp.gate_proj.weight", vec![16, 8]),
                ("mlp.up_proj.weight", vec![16, 8]),
                ("mlp.down_proj.weight", vec![8, 16]),
            ] {
                shapes.insert(format!("model.layers.{n}.{part}"), shape);
            }
        }
        Self { dir: tempfile::tempdir().unwrap(), config, shapes, dtype: Dtype::BF16, zero: None }
    }

    fn qwen2() -> Self {
        let mut folder = Self::new();
        folder.config["model_type"] = json!("qwen2");
        for n in 0..2 {
            for (part, len) in [("q", 8), ("k", 4), ("v", 4)] {
                folder.shapes.insert(format!("model.layers.{n}.self_attn.{part}_proj.bias"), vec![len]);
            }
        }
        folder
    }

    fn with(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    fn write(&self) {
        self.file("config.json", self.config.to_string());
        self.file("model.safetensors", self.safetensors(|_| true));
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(name), bytes).unwrap();
    }

    fn safetensors(&self, keep: impl Fn(&str) -> bool) -> Vec<u8> {
        let one: &[u8] = match self.dtype {
            Dtype::F32 => &[0, 0, 0x80, 0x3f],
            Dtype::F16 => &[0, 0x3c],
            Dtype::BF16 => &[0x80, 0x3f],
            _ => &[1, 0],
        };
        let (ones, zeros) = (one.repeat(16 * 16), vec![0; one.len() * 16 * 16]);
        let views = self.shapes.iter().filter(|(name, _)| keep(name)).map(|(name, shape)| {
            let data = if self.zero == Some(name) { &zeros } else { &ones };
            let bytes = shape.iter().product::<usize>() * one.len();
            (name.as_str(), TensorView::new(self.dtype, shape.clone(), &data[..bytes]).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(self.dir.path())
    }

    /// Writes and opens; what is wrong.
    fn error(&self) -> CheckpointError {
        self.write();
        self.open().err().expect("the folder is broken")
    }
}

fn names_field(error: &CheckpointError, name: &str) -> bool {
    matches!(error, CheckpointError::Field { field, .. } if field == name)
}

#[test]
fn a_whole_folder_opens_with_its_sizes_and_places() {
    let folder = Folder::new();
    folder.write();
    let checkpoint = folder.open().unwrap();
    let a = checkpoint.architecture();
    assert_eq!((a.hidden, a.layers, a.heads, a.kv_heads, a.head_dim, a.group(), a.qkv_width()), (8, 2, 2, 1, 4, 2, 16));
    assert_eq!(checkpoint.eos_token_ids(), [2]);
    let layer = checkpoint.layer(1).unwrap();
    assert_eq!((layer.k.rows, layer.k.cols, layer.k.format, layer.k.range.len()), (4, 8, WeightFormat::Bf16, 64));
    assert_eq!(layer.input_norm, [1.0; 8]);
    assert!(layer.qkv_bias.is_none());
    let (embedding, head) = (checkpoint.embedding().unwrap(), checkpoint.head().unwrap());
    assert_eq!(embedding.range, head.range, "tied");
}

#[test]
fn every_element_type_reads_the_same_values() {
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        let mut folder = Folder::qwen2();
        folder.dtype = dtype;
        folder.write();
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.final_norm().unwrap(), [1.0; 8], "{dtype:?}");
        assert_eq!(checkpoint.layer(0).unwrap().qkv_bias.unwrap(), [1.0; 16], "{dtype:?}");
    }
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let folder = Folder::new();
    folder.write();
    folder.file("model.safetensors.index.json", json!({"weight_map": {"x": "../model.safetensors"}}).to_string());
    let error = folder.open().err().unwrap();
    assert!(matches!(&error, CheckpointError::Json { detail, .. } if detail.contains("plain file name")), "{error}");
}

#[test]
fn tensors_without_the_usual_prefix_are_found() {
    let mut folder = Folder::new();
    folder.shapes = folder.shapes.into_iter().map(|(name, shape)| (name.replace("model.", ""), shape)).collect();
    folder.write();
    folder.open().unwrap();
}

#[test]
fn end_tokens_come_from_generation_config_first() {
    let folder = Folder::new();
    folder.write();
    folder.file("generation_config.json", r#"{"eos_token_id": [3, 4]}"#);
    assert_eq!(folder.open().unwrap().eos_token_ids(), [3, 4]);
    folder.file("generation_config.json", "{}");
    assert_eq!(folder.open().unwrap().eos_token_ids(), [2]);
}

/// Also where the other file's decides: a checkpoint that says nonsense is not one to guess about.
#[test]
fn end_tokens_of_a_wrong_type_are_refused_in_either_file() {
    for wrong in
        [json!("</s>"), json!(["</s>"]), json!(true), json!(-1), json!(1.5), json!([[2]]), json!({}), json!([2, null]), json!(1u64 << 40)]
    {
        let folder = Folder::new();
        folder.write();
        folder.file("generation_config.json", json!({"eos_token_id": wrong}).to_string());
        let error = folder.open().err().unwrap();
        assert!(names_field(&error, "eos_token_id") && error.to_string().contains("generation_config.json"), "{wrong}: {error}");
        let folder = Folder::new().with("eos_token_id", wrong.clone());
        folder.write();
        folder.file("generation_config.json", r#"{"eos_token_id": 3}"#);
        let error = folder.open().err().unwrap();
        assert!(names_field(&error, "eos_token_id") && !error.to_string().contains("generation_config.json"), "{wrong}: {error}");
    }
}

#[test]
fn an_end_token_outside_the_vocabulary_is_refused() {
    let error = Folder::new().with("eos_token_id", json!(12)).error();
    assert!(names_field(&error, "eos_token_id"), "{error}");
}

#[test]
fn an_empty_folder_lacks_a_config() {
    let error = Checkpoint::open(tempfile::tempdir().unwrap().path()).err().unwrap();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path.ends_with("config.json")), "{error}");
}

#[test]
fn a_folder_without_weights_says_so() {
    let folder = Folder::new();
    folder.file("config.json", folder.config.to_string());
    assert!(matches!(folder.open().err().unwrap(), CheckpointError::NoWeights { .. }));
}

#[test]
fn a_config_that_is_no_json_object_is_refused() {
    let folder = Folder::new();
    for text in ["", "{\"model_type\": ", "[]", "\u{0}"] {
        folder.file("config.json", text);
        assert!(matches!(folder.open().err().unwrap(), CheckpointError::Json { .. }), "{text:?}");
    }
    folder.file("config.json", " ".repeat(5 << 20));
    assert!(matches!(folder.open().err().unwrap(), CheckpointError::TooLarge { .. }));
}

#[test]
fn every_required_field_is_named_when_missing_or_of_another_type() {
    for field in [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        for value in [Value::Null, json!([]), json!(-1), json!({})] {
            let error = Folder::new().with(field, value).error();
            assert!(names_field(&error, field), "{field}: {error}");
        }
    }
}

#[test]
fn absurd_sizes_are_refused_by_field() {
    for (field, value) in [
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(1e300)),
        ("vocab_size", json!(0)),
        ("head_dim", json!(3)),
        ("num_key_value_heads", json!(3)),
        ("rope_theta", json!(0.0)),
        ("rms_norm_eps", json!("1e-5")),
    ] {
        let error = Folder::new().with(field, value).error();
        assert!(names_field(&error, field), "{field}: {error}");
    }
}

#[test]
fn variants_that_change_the_arithmetic_are_refused() {
    for (field, value) in [
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("quantization_config", json!({"bits": 4})),
        ("partial_rotary_factor", json!(0.5)),
        ("use_sliding_window", json!(true)),
    ] {
        let error = Folder::new().with(field, value).error();
        assert!(names_field(&error, field), "{field}: {error}");
    }
    for (field, value, name) in [
        ("model_type", json!("mamba"), "mamba"),
        ("hidden_act", json!("relu"), "relu"),
        ("rope_scaling", json!({"rope_type": "longrope"}), "longrope"),
    ] {
        let error = Folder::new().with(field, value).error();
        assert!(matches!(&error, CheckpointError::Unsupported { name: n, .. } if n == name), "{error}");
    }
}

#[test]
fn a_missing_tensor_is_named() {
    let mut folder = Folder::new();
    folder.shapes.remove("model.layers.1.mlp.up_proj.weight");
    let error = folder.error();
    assert!(matches!(&error, CheckpointError::TensorMissing { name } if name == "model.layers.1.mlp.up_proj.weight"), "{error}");
}

#[test]
fn a_wrongly_shaped_tensor_is_named_with_both_shapes() {
    let mut folder = Folder::new();
    folder.shapes.insert("model.layers.0.self_attn.k_proj.weight".into(), vec![8, 4]);
    let error = folder.error();
    assert!(
        matches!(&error, CheckpointError::Shape { name, found, expected }
        if name == "model.layers.0.self_attn.k_proj.weight" && found == &[8, 4] && expected == &[4, 8]),
        "{error}"
    );
}

#[test]
fn a_vocabulary_that_differs_from_the_embedding_is_refused() {
    let error = Folder::new().with("vocab_size", json!(13)).error();
    assert!(matches!(&error, CheckpointError::Shape { name, .. } if name == "model.embed_tokens.weight"), "{error}");
}

#[test]
fn other_element_types_are_refused() {
    let mut folder = Folder::new();
    folder.dtype = Dtype::I16;
    let error = folder.error();
    assert!(matches!(&error, CheckpointError::ElementType { found, .. } if found == "I16"), "{error}");
}

#[test]
fn biases_that_the_decoder_would_leave_out_are_refused() {
    let mut folder = Folder::new();
    folder.shapes.insert("model.layers.0.self_attn.o_proj.bias".into(), vec![8]);
    let error = folder.error();
    assert!(matches!(&error, CheckpointError::UnexpectedTensor { name, .. } if name.ends_with("o_proj.bias")), "{error}");
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let folder = Folder::new();
    folder.write();
    let whole = folder.safetensors(|_| true);
    for length in [0, 7, 8, 100, whole.len() - 1] {
        folder.file("model.safetensors", &whole[..length]);
        let error = folder.open().err().unwrap();
        assert!(matches!(error, CheckpointError::Safetensors { .. } | CheckpointError::Io { .. }), "{length}: {error}");
    }
    folder.file("model.safetensors", [&whole[..], b"more"].concat());
    assert!(matches!(folder.open().err().unwrap(), CheckpointError::Safetensors { .. }));
}

#[test]
fn a_header_that_claims_too_much_is_refused_before_it_is_read() {
    let folder = Folder::new();
    folder.write();
    for length in [MAX_JSON << 10, u64::MAX, u64::MAX - 7] {
        folder.file("model.safetensors", [&length.to_le_bytes()[..], b"{}"].concat());
        assert!(matches!(folder.open().err().unwrap(), CheckpointError::Safetensors { .. }), "{length}");
    }
}

#[test]
fn tensors_that_overlap_or_leave_the_file_are_refused() {
    let folder = Folder::new();
    folder.write();
    for offsets in ["[0, 32], [16, 48]", "[0, 32], [64, 96]", "[0, 32], [32, 18446744073709551615]"] {
        let (a, b) = offsets.split_once("], ").unwrap();
        let header = format!(
            r#"{{"a": {{"dtype": "BF16", "shape": [16], "data_offsets": {a}]}}, "b": {{"dtype": "BF16", "shape": [16], "data_offsets": {b}}}}}"#
        );
        folder.file("model.safetensors", [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 96]].concat());
        assert!(matches!(folder.open().err().unwrap(), CheckpointError::Safetensors { .. }), "{offsets}");
    }
}

#[test]
fn a_tensor_at_an_odd_byte_is_refused() {
    let folder = Folder::new();
    folder.write();
    let whole = folder.safetensors(|_| true);
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let text = [&whole[8..8 + header], b" "].concat();
    folder.file("model.safetensors", [&(text.len() as u64).to_le_bytes()[..], &text, &whole[8 + header..]].concat());
    assert!(matches!(folder.open().err().unwrap(), CheckpointError::Misaligned { .. }));
}

//! Nothing comes out of broken files, and what is wrong is said by name.

use crate::model::{Gguf, HIDDEN};
use candle_core::quantized::gguf_file::Value;
use skip_import::{ImportError, import};
use std::path::Path;

/// Imports bytes that must be refused; nothing may be left behind.
fn refused(bytes: &[u8]) -> ImportError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = import(&path, &dir.path().join("out"), |_| {}).expect_err("the file is broken");
    assert_eq!(names(dir.path()), ["model.gguf"], "nothing half-written: {error}");
    error
}

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn is_key(error: &ImportError, name: &str) -> bool {
    matches!(error, ImportError::Key { key, .. } if key == name)
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let whole = Gguf::llama().bytes();
    for length in [0, 3, 4, 8, 23, 24, 500, whole.len() / 2, whole.len() - 33] {
        let error = refused(&whole[..length]);
        assert!(matches!(error, ImportError::Malformed { .. }), "{length}: {error}");
    }
}

#[test]
fn something_else_than_gguf_is_refused() {
    for bytes in [&b"{\"a\": 1}"[..], b"GGUF\x01\0\0\0", b"GGUF\xff\xff\xff\xff", b"GGML\x03\0\0\0"] {
        assert!(matches!(refused(bytes), ImportError::Malformed { .. }));
    }
}

#[test]
fn absurd_counts_are_refused_without_taking_memory() {
    let whole = Gguf::llama().bytes();
    for at in [8, 16] {
        for count in [1u64 << 20, 1 << 40, u64::MAX] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            assert!(matches!(refused(&bytes), ImportError::Malformed { .. }), "{at} {count}");
        }
    }
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [Value::U32(0), Value::U32(48), Value::U64(96), Value::String("32".into())] {
        let error = refused(&Gguf::llama().with("general.alignment", alignment).bytes());
        assert!(error.to_string().contains("general.alignment"), "{error}");
    }
}

#[test]
fn a_good_alignment_does_not_hide_a_bad_one() {
    let stored = |alignment: u32| [b"\x11\0\0\0\0\0\0\0general.alignment\x04\0\0\0", &alignment.to_le_bytes()[..]].concat();
    let header = |entries: &[Vec<u8>]| {
        let counts = [0, entries.len() as u64].map(u64::to_le_bytes).concat();
        [b"GGUF\x03\0\0\0", &counts[..], &entries.concat()].concat()
    };
    let text = [b"\x01\0\0\0\0\0\0\0x\x08\0\0\0", &(stored(32).len() as u64).to_le_bytes()[..], &stored(32)].concat();
    for entries in [[stored(32), stored(0)], [text, stored(0)]] {
        let error = refused(&header(&entries));
        assert!(error.to_string().contains("general.alignment"), "{error}");
    }
}

#[test]
fn every_required_key_is_named_when_missing_or_of_another_type() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ] {
        let error = refused(&Gguf::llama().without(key).bytes());
        assert!(matches!(&error, ImportError::MissingKey { key: k } if k == key), "{key}: {error}");
        let error = refused(&Gguf::llama().with(key, Value::Bool(true)).bytes());
        assert!(is_key(&error, key), "{key}: {error}");
    }
}

#[test]
fn impossible_values_are_refused_by_key() {
    for (key, value) in [
        ("llama.block_count", Value::U32(0)),
        ("llama.block_count", Value::U64(u64::MAX)),
        ("llama.embedding_length", Value::I32(-64)),
        ("llama.attention.head_count", Value::U32(3)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
        ("llama.rope.freq_base", Value::F32(-1.0)),
        ("llama.rope.dimension_count", Value::U32(8)),
        ("llama.attention.value_length", Value::U32(8)),
        ("llama.attention.scale", Value::F32(0.1)),
        ("llama.expert_count", Value::U32(8)),
        ("llama.final_logit_softcapping", Value::F32(30.0)),
        ("llama.rope.scaling.factor", Value::F32(0.0)),
        ("tokenizer.ggml.eos_token_id", Value::U32(300)),
        ("tokenizer.ggml.add_bos_token", Value::U32(1)),
        ("tokenizer.ggml.merges", Value::Array(vec![Value::String("a z".into())])),
        ("tokenizer.ggml.merges", Value::Array(vec![Value::U32(1)])),
        ("tokenizer.ggml.token_type", Value::Array(vec![Value::I32(1); 299])),
        ("tokenizer.ggml.tokens", Value::Array(vec![Value::String("a".into()); 301])),
    ] {
        let error = refused(&Gguf::llama().with(key, value).bytes());
        let refused_elsewhere = matches!(&error, ImportError::Tensor { .. });
        assert!(is_key(&error, key) || (key == "llama.attention.head_count" && refused_elsewhere), "{key}: {error}");
    }
}

#[test]
fn a_token_that_stands_twice_is_refused() {
    let mut gguf = Gguf::llama();
    let Some(Value::Array(tokens)) = gguf.keys.get_mut("tokenizer.ggml.tokens") else { panic!("a list") };
    tokens[1] = tokens[2].clone();
    assert!(is_key(&refused(&gguf.bytes()), "tokenizer.ggml.tokens"));
}

#[test]
fn unsupported_kinds_are_refused_by_name() {
    for (key, name) in [
        ("general.architecture", "mamba"),
        ("tokenizer.ggml.model", "bert"),
        ("tokenizer.ggml.pre", "default"),
        ("llama.rope.scaling.type", "longrope"),
    ] {
        let error = refused(&Gguf::llama().with(key, Value::String(name.into())).bytes());
        assert!(matches!(&error, ImportError::Unsupported { name: n, .. } if n == name), "{error}");
    }
}

#[test]
fn element_formats_that_cannot_be_read_are_refused_by_name() {
    let mut bytes = Gguf::llama().bytes();
    let name = b"blk.0.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
    // Behind the name: the number of dimensions, two dimensions, the format.
    let kind = at + 4 + 2 * 8;
    assert_eq!(bytes[kind..kind + 4], 8u32.to_le_bytes(), "Q8_0");
    for (number, named) in [(16u32, "IQ2_XXS of tensor blk.0.ffn_up.weight"), (99, "number 99 of tensor blk.0.ffn_up.weight")] {
        bytes[kind..kind + 4].copy_from_slice(&number.to_le_bytes());
        let error = refused(&bytes);
        assert!(matches!(&error, ImportError::Unsupported { name, .. } if name == named), "{error}");
    }
}

#[test]
fn a_file_that_ends_within_its_last_tensor_is_refused_before_anything_is_written() {
    let whole = Gguf::llama().bytes();
    let error = refused(&whole[..whole.len() - 64]);
    assert!(error.to_string().contains("cut short: tensor `"), "{error}");
}

#[test]
fn a_key_that_stands_twice_is_refused() {
    let entry = b"\x01\0\0\0\0\0\0\0x\x07\0\0\0\x01";
    let header = [b"GGUF\x03\0\0\0", &[0, 2].map(u64::to_le_bytes).concat()[..], entry, entry].concat();
    assert!(refused(&header).to_string().contains("`x` stands twice"));
}

#[test]
fn missing_foreign_and_wrongly_shaped_tensors_are_named() {
    let named = |gguf: Gguf, tensor: &str| {
        let error = refused(&gguf.bytes());
        assert!(matches!(&error, ImportError::Tensor { name, .. } if name == tensor), "{error}");
    };
    let mut gguf = Gguf::llama();
    gguf.tensors.remove("blk.0.ffn_up.weight");
    named(gguf, "blk.0.ffn_up.weight");
    named(Gguf::llama().with_tensor("blk.0.attn_q.bias", &[HIDDEN]), "blk.0.attn_q.bias");
    named(Gguf::llama().with_tensor("blk.1.attn_norm.weight", &[HIDDEN]), "blk.1.attn_norm.weight");
    named(Gguf::llama().with_tensor("blk.0.attn_k.weight", &[64, 32]), "blk.0.attn_k.weight");
    named(Gguf::llama().with_tensor("token_embd.weight", &[300, 2, 32]), "token_embd.weight");
}

/// Whatever one byte of the header becomes, the import ends with a folder or an error, and an error leaves nothing.
#[test]
fn no_changed_byte_panics_or_leaves_half_a_folder() {
    let whole = Gguf::llama().bytes();
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("model.gguf"), dir.path().join("out"));
    let (mut imported, mut refused) = (0, 0);
    for at in (0..12_000.min(whole.len())).step_by(61) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        std::fs::write(&path, &bytes).unwrap();
        match import(&path, &out, |_| {}) {
            Ok(_) => {
                imported += 1;
                std::fs::remove_dir_all(&out).unwrap();
            }
            Err(_) => {
                refused += 1;
                assert_eq!(names(dir.path()), ["model.gguf"], "byte {at}");
            }
        }
    }
    assert!(imported > 0 && refused > 0, "{imported} imported, {refused} refused");
}

#[test]
fn a_folder_with_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = Gguf::llama().write(dir.path());
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    import(&path, &out, |_| {}).expect("an empty folder is taken");
    let error = import(&path, &out, |_| {}).unwrap_err();
    assert!(matches!(&error, ImportError::TargetExists { .. }), "{error}");
    assert!(out.join("config.json").exists());
}

#[test]
fn a_second_import_into_the_same_folder_is_refused_and_what_a_killed_one_left_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let path = Gguf::llama().write(dir.path());
    let (out, staging) = (dir.path().join("out"), dir.path().join(".out.importing"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::write(staging.join("model.safetensors"), "half").unwrap();
    let held = std::fs::File::open(&staging).unwrap();
    held.lock().unwrap();
    let error = import(&path, &out, |_| {}).unwrap_err();
    assert!(matches!(&error, ImportError::TargetBusy { .. }), "{error}");
    drop(held);
    import(&path, &out, |_| {}).unwrap();
    assert!(!staging.exists() && out.join("model.safetensors").metadata().unwrap().len() > 4);
}

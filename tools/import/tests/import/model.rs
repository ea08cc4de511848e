//! A one-layer model as a GGUF file: hidden size 64, 4/2 heads of 16, 300 tokens.

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const HIDDEN: usize = 64;
pub const HEAD: usize = 16;
pub const VOCAB: usize = 300;

pub struct Gguf {
    pub keys: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
}

fn strings<S: ToString>(list: impl IntoIterator<Item = S>) -> Value {
    Value::Array(list.into_iter().map(|s| Value::String(s.to_string())).collect())
}

/// Values that differ from row to row and column to column.
fn values(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

impl Gguf {
    pub fn llama() -> Self {
        Self::of("llama", "smollm")
    }

    /// With biases and a head of its own.
    pub fn qwen2() -> Self {
        let mut gguf = Self::of("qwen2", "qwen2");
        for (part, len) in [("q", HIDDEN), ("k", 2 * HEAD), ("v", 2 * HEAD)] {
            gguf.tensors.insert(format!("blk.0.attn_{part}.bias"), values(&[len]));
        }
        gguf.tensors.insert("output.weight".into(), values(&[VOCAB, HIDDEN]));
        gguf
    }

    /// With norms of q and k.
    pub fn qwen3() -> Self {
        Self::of("qwen3", "qwen2").with_tensor("blk.0.attn_q_norm.weight", &[HEAD]).with_tensor("blk.0.attn_k_norm.weight", &[HEAD])
    }

    /// With norms around everything, a window, and a SentencePiece vocabulary.
    pub fn gemma3() -> Self {
        let mut gguf = Self::of("gemma3", "default");
        for (name, width) in [("attn_q_norm", HEAD), ("attn_k_norm", HEAD), ("post_attention_norm", HIDDEN), ("post_ffw_norm", HIDDEN)] {
            gguf = gguf.with_tensor(&format!("blk.0.{name}.weight"), &[width]);
        }
        let (tokens, types, scores) = pieces();
        gguf.without("tokenizer.ggml.merges")
            .with("gemma3.attention.sliding_window", Value::U32(32))
            .with("tokenizer.ggml.model", Value::String("llama".into()))
            .with("tokenizer.ggml.tokens", strings(tokens))
            .with("tokenizer.ggml.token_type", Value::Array(types.into_iter().map(Value::I32).collect()))
            .with("tokenizer.ggml.scores", Value::Array(scores.into_iter().map(Value::F32).collect()))
            .with("tokenizer.ggml.bos_token_id", Value::U32(2))
            .with("tokenizer.ggml.eos_token_id", Value::U32(1))
            .with("tokenizer.ggml.unknown_token_id", Value::U32(3))
            .with("tokenizer.ggml.add_space_prefix", Value::Bool(false))
    }

    fn of(family: &str, pre: &str) -> Self {
        let mut keys = BTreeMap::new();
        let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
        set("general.architecture", Value::String(family.into()));
        set("general.name", Value::String("tiny".into()));
        for (key, n) in [
            ("block_count", 1),
            ("context_length", 128),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            set(&format!("{family}.{key}"), Value::U32(n));
        }
        set(&format!("{family}.rope.freq_base"), Value::F32(100000.0));
        set(&format!("{family}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
        set("tokenizer.ggml.model", Value::String("gpt2".into()));
        set("tokenizer.ggml.pre", Value::String(pre.into()));
        let (tokens, types) = vocabulary();
        set("tokenizer.ggml.tokens", strings(tokens));
        set("tokenizer.ggml.token_type", Value::Array(types.into_iter().map(Value::I32).collect()));
        set("tokenizer.ggml.merges", strings(["a b", "ab c"]));
        set("tokenizer.ggml.bos_token_id", Value::U32(258));
        set("tokenizer.ggml.eos_token_id", Value::U32(259));
        set("tokenizer.chat_template", Value::String("{{ messages[0].content }}".into()));
        let mut tensors = BTreeMap::new();
        for (name, shape) in [
            ("token_embd.weight", vec![VOCAB, HIDDEN]),
            ("output_norm.weight", vec![HIDDEN]),
            ("blk.0.attn_norm.weight", vec![HIDDEN]),
            ("blk.0.attn_q.weight", vec![4 * HEAD, HIDDEN]),
            ("blk.0.attn_k.weight", vec![2 * HEAD, HIDDEN]),
            ("blk.0.attn_v.weight", vec![2 * HEAD, HIDDEN]),
            ("blk.0.attn_output.weight", vec![HIDDEN, 4 * HEAD]),
            ("blk.0.ffn_norm.weight", vec![HIDDEN]),
            ("blk.0.ffn_gate.weight", vec![96, HIDDEN]),
            ("blk.0.ffn_up.weight", vec![96, HIDDEN]),
            ("blk.0.ffn_down.weight", vec![HIDDEN, 96]),
        ] {
            tensors.insert(name.to_owned(), values(&shape));
        }
        Self { keys, tensors }
    }

    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.keys.insert(key.to_owned(), value);
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.keys.remove(key).expect("the model has that key");
        self
    }

    pub fn with_tensor(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.insert(name.to_owned(), values(shape));
        self
    }

    /// Matrices as Q8_0, vectors as float32.
    fn quantized(tensor: &Tensor) -> QTensor {
        let dtype = if tensor.rank() == 2 { GgmlDType::Q8_0 } else { GgmlDType::F32 };
        QTensor::quantize(tensor, dtype).unwrap()
    }

    /// What an importer should read back.
    pub fn dequantized(&self, name: &str) -> Vec<f32> {
        Self::quantized(&self.tensors[name]).dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let keys: Vec<_> = self.keys.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(name, tensor)| (name.as_str(), Self::quantized(tensor))).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut file = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut file, &keys, &tensors).unwrap();
        file.into_inner()
    }

    pub fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

/// 256 bytes in GPT-2's alphabet, two merged tokens, two control tokens, one user-defined one; the rest is padding.
fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let mut tokens = vec![String::new(); VOCAB];
    let mut types = vec![1; VOCAB];
    let mut moved = 0x100;
    for (byte, token) in tokens.iter_mut().enumerate().take(256) {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte as u32 } else { moved };
        moved += u32::from(!printable);
        *token = char::from_u32(code).unwrap().to_string();
    }
    for (id, token, kind) in
        [(256, "ab", 1), (257, "abc", 1), (258, "<|begin|>", 3), (259, "<|im_end|>", 3), (260, "<|endoftext|>", 3), (261, "<tool>", 4)]
    {
        tokens[id] = token.to_owned();
        types[id] = kind;
    }
    for id in 262..VOCAB {
        tokens[id] = format!("[PAD{id}]");
        types[id] = 5;
    }
    (tokens, types)
}

/// Four control tokens, 256 bytes, pieces with scores, a run of spaces; the rest is padding.
fn pieces() -> (Vec<String>, Vec<i32>, Vec<f32>) {
    let mut tokens: Vec<(String, i32, f32)> = Vec::new();
    for (token, kind) in [("<pad>", 3), ("<eos>", 3), ("<bos>", 3), ("<unk>", 2)] {
        tokens.push((token.into(), kind, -1000.0));
    }
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    // "bc" is the better pair, so "abc" is a + bc.
    for (rank, piece) in ["bc", "ab", "abc", "\u{2581}a", "\u{2581}", "a", "b", "c"].into_iter().enumerate() {
        tokens.push((piece.into(), 1, -(rank as f32)));
    }
    tokens.push(("   ".into(), 4, -1000.0));
    tokens.push(("<end_of_turn>".into(), 3, -1000.0));
    tokens.extend((tokens.len()..VOCAB).map(|id| (format!("[PAD{id}]"), 5, 0.0)).collect::<Vec<_>>());
    let types = tokens.iter().map(|t| t.1).collect();
    let scores = tokens.iter().map(|t| t.2).collect();
    (tokens.into_iter().map(|t| t.0).collect(), types, scores)
}

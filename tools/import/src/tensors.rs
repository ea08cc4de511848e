//! Which tensors a decoder has: their names in GGUF and in Hugging Face checkpoints, their shapes, and the row order to restore.

use crate::ImportError;
use crate::gguf::Gguf;
use crate::model::Model;
use std::collections::HashSet;

/// One tensor on its way.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Name in the GGUF file.
    pub source: String,
    /// Name in the safetensors file.
    pub target: String,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// Rows of each head are interleaved (2i, 2i + 1) and go back to halves (i, i + head_dim / 2).
    pub interleaved: bool,
    /// Taken from every value.
    pub offset: f32,
}

impl Plan {
    /// Rows and columns; a vector is one row.
    pub fn matrix(&self) -> (usize, usize) {
        match *self.shape {
            [rows, cols] => (rows, cols),
            _ => (1, self.shape.iter().product()),
        }
    }
}

/// All tensors in the order they are written; the file has these and no others.
pub(crate) fn plan(model: &Model, gguf: &Gguf) -> Result<Vec<Plan>, ImportError> {
    let family = model.family;
    let mut plans = Vec::new();
    let mut add = |source: String, target: String, shape: Vec<usize>| {
        let interleaved = family.is_interleaved() && (source.ends_with("attn_q.weight") || source.ends_with("attn_k.weight"));
        let offset = if source.ends_with("norm.weight") { family.norm_offset() } else { 0.0 };
        plans.push(Plan { source, target, shape, interleaved, offset });
    };
    let (hidden, inner) = (model.hidden, model.intermediate);
    let (q, kv) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
    add("token_embd.weight".into(), "model.embed_tokens.weight".into(), vec![model.vocab, hidden]);
    for n in 0..model.layers {
        let mut layer = |source: &str, target: &str, shape: Vec<usize>| {
            add(format!("blk.{n}.{source}"), format!("model.layers.{n}.{target}"), shape);
        };
        layer("attn_norm.weight", "input_layernorm.weight", vec![hidden]);
        for (part, rows) in [("q", q), ("k", kv), ("v", kv)] {
            layer(&format!("attn_{part}.weight"), &format!("self_attn.{part}_proj.weight"), vec![rows, hidden]);
            if family.has_qkv_bias() {
                layer(&format!("attn_{part}.bias"), &format!("self_attn.{part}_proj.bias"), vec![rows]);
            }
            if family.has_qk_norm() && part != "v" {
                layer(&format!("attn_{part}_norm.weight"), &format!("self_attn.{part}_norm.weight"), vec![model.head_dim]);
            }
        }
        layer("attn_output.weight", "self_attn.o_proj.weight", vec![hidden, q]);
        if family.has_post_norms() {
            layer("post_attention_norm.weight", "post_attention_layernorm.weight", vec![hidden]);
            layer("ffn_norm.weight", "pre_feedforward_layernorm.weight", vec![hidden]);
            layer("post_ffw_norm.weight", "post_feedforward_layernorm.weight", vec![hidden]);
        } else {
            layer("ffn_norm.weight", "post_attention_layernorm.weight", vec![hidden]);
        }
        layer("ffn_gate.weight", "mlp.gate_proj.weight", vec![inner, hidden]);
        layer("ffn_up.weight", "mlp.up_proj.weight", vec![inner, hidden]);
        layer("ffn_down.weight", "mlp.down_proj.weight", vec![hidden, inner]);
    }
    add("output_norm.weight".into(), "model.norm.weight".into(), vec![hidden]);
    if !model.tied {
        add("output.weight".into(), "lm_head.weight".into(), vec![model.vocab, hidden]);
    }
    check(&plans, gguf)?;
    Ok(plans)
}

fn check(plans: &[Plan], gguf: &Gguf) -> Result<(), ImportError> {
    for plan in plans {
        match gguf.shape(&plan.source) {
            None => return Err(ImportError::tensor(&plan.source, "missing")),
            Some(found) if found != plan.shape => {
                return Err(ImportError::tensor(&plan.source, format!("shape {found:?}; the metadata asks for {:?}", plan.shape)));
            }
            Some(_) => {}
        }
    }
    let known: HashSet<&str> = plans.iter().map(|p| p.source.as_str()).chain(["rope_freqs.weight"]).collect();
    match gguf.tensor_names().find(|name| !known.contains(name)) {
        Some(name) => Err(ImportError::tensor(name, "not part of this architecture")),
        None => Ok(()),
    }
}

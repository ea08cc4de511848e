//! A checkpoint folder made of a recorded case: weights follow from their names, as in `make_families.py`.

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::Value;

/// A decoder and its logits.
#[derive(Deserialize)]
pub struct Case {
    pub config: Value,
    /// The same as transformers writes it.
    pub saved: Value,
    /// Name, shape, base and spread.
    tensors: Vec<(String, Vec<usize>, f64, f64)>,
    /// Behind the prompt, and behind each token after it.
    pub logits: Vec<Vec<f32>>,
}

impl Case {
    /// The folder with one of the two.
    pub fn write(&self, config: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let data: Vec<Vec<u8>> = self.tensors.iter().map(|(name, shape, base, spread)| values(name, shape, *base, *spread)).collect();
        let views = self
            .tensors
            .iter()
            .zip(&data)
            .map(|((name, shape, ..), data)| (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), data).unwrap()));
        std::fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        dir
    }
}

fn values(name: &str, shape: &[usize], base: f64, spread: f64) -> Vec<u8> {
    let value = |u: f64| bf16::from_f32((base + spread * u) as f32).to_le_bytes();
    units(name).take(shape.iter().product()).flat_map(value).collect()
}

/// Numbers in [-1, 1): FNV-1a of the name, splitmix64 from there on.
fn units(name: &str) -> impl Iterator<Item = f64> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (1u64..).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f64 / f64::from(1u32 << 23) - 1.0
    })
}

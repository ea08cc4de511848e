//! Element formats of GGUF tensors: how large their blocks are, and what values they stand for.
//!
//! Most are dequantised by candle; IQ4_NL and IQ4_XS, which it does not know, follow ggml (`dequantize_row_iq4_nl`, `dequantize_row_iq4_xs`).

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use half::{bf16, f16};

/// What can be read.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS";

/// An element format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Format {
    F32,
    F16,
    Bf16,
    Iq4Nl,
    Iq4Xs,
    /// A block of these.
    Blocks(GgmlDType),
}

impl Format {
    /// By its number in the file; the name of one that cannot be read.
    pub fn of(kind: u32) -> Result<Self, String> {
        Ok(match kind {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Blocks(GgmlDType::Q4_0),
            3 => Format::Blocks(GgmlDType::Q4_1),
            6 => Format::Blocks(GgmlDType::Q5_0),
            7 => Format::Blocks(GgmlDType::Q5_1),
            8 => Format::Blocks(GgmlDType::Q8_0),
            10 => Format::Blocks(GgmlDType::Q2K),
            11 => Format::Blocks(GgmlDType::Q3K),
            12 => Format::Blocks(GgmlDType::Q4K),
            13 => Format::Blocks(GgmlDType::Q5K),
            14 => Format::Blocks(GgmlDType::Q6K),
            20 => Format::Iq4Nl,
            23 => Format::Iq4Xs,
            30 => Format::Bf16,
            other => return Err(name(other)),
        })
    }

    /// Values a block.
    pub fn block(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
            Format::Iq4Nl => IQ4_NL,
            Format::Iq4Xs => IQ4_XS,
            Format::Blocks(kind) => kind.block_size(),
        }
    }

    /// Bytes a block.
    pub fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::Iq4Nl => 2 + IQ4_NL / 2,
            Format::Iq4Xs => 8 + IQ4_XS / 2,
            Format::Blocks(kind) => kind.type_size(),
        }
    }

    /// The values of whole blocks.
    pub fn dequantise(self, bytes: &[u8]) -> Result<Vec<f32>, String> {
        let pairs = bytes.as_chunks::<2>().0;
        Ok(match self {
            Format::F32 => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Format::F16 => pairs.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
            Format::Bf16 => pairs.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
            Format::Iq4Nl => bytes.chunks_exact(self.bytes()).flat_map(iq4_nl).collect(),
            Format::Iq4Xs => bytes.chunks_exact(self.bytes()).flat_map(iq4_xs).collect(),
            Format::Blocks(kind) => {
                let values = bytes.len() / self.bytes() * self.block();
                let read = || qtensor_from_ggml(kind, bytes, vec![values], &Device::Cpu)?.dequantize(&Device::Cpu)?.to_vec1::<f32>();
                // Its message without the backtrace.
                read().map_err(|e| e.to_string().lines().next().unwrap_or("unreadable").to_owned())?
            }
        })
    }
}

const IQ4_NL: usize = 32;
const IQ4_XS: usize = 256;

/// What the 16 codes of both stand for.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Low halves of 16 bytes, then high halves.
fn levels(codes: &[u8], scale: f32) -> impl Iterator<Item = f32> {
    let level = move |code: u8| scale * f32::from(LEVELS[usize::from(code)]);
    codes.iter().map(|byte| byte & 15).chain(codes.iter().map(|byte| byte >> 4)).map(level)
}

/// A scale and 32 codes.
fn iq4_nl(block: &[u8]) -> Vec<f32> {
    levels(&block[2..], f16::from_le_bytes([block[0], block[1]]).to_f32()).collect()
}

/// A scale, eight factors of 6 bits (two high bits each in one word, low halves behind it), 256 codes.
fn iq4_xs(block: &[u8]) -> Vec<f32> {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    let high = u16::from_le_bytes([block[2], block[3]]);
    let part = |i: usize| {
        let low = block[4 + i / 2] >> (4 * (i % 2)) & 15;
        let factor = i16::from(low) | ((high >> (2 * i) & 3) << 4) as i16;
        levels(&block[8 + 16 * i..][..16], scale * f32::from(factor - 32)).collect::<Vec<f32>>()
    };
    (0..8).flat_map(part).collect()
}

/// ggml's name of a format that cannot be read.
fn name(kind: u32) -> String {
    let known = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        other => return format!("number {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        kind: u32,
        bytes: String,
        values: Vec<f32>,
    }

    /// What ggml's own Python package reads in the same blocks (`tests/data/make_quants.py`).
    #[test]
    fn every_format_reads_as_ggml_reads_it() {
        let text = include_str!("../../../tests/data/quants.json");
        let cases: std::collections::BTreeMap<String, Case> = serde_json::from_str(text).unwrap();
        assert_eq!(cases.len(), SUPPORTED.split(", ").count());
        for name in SUPPORTED.split(", ") {
            let case = &cases[name];
            let digits = case.bytes.as_bytes().as_chunks::<2>().0;
            let bytes: Vec<u8> = digits.iter().map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect();
            let format = Format::of(case.kind).unwrap();
            assert_eq!(bytes.len() / format.bytes() * format.block(), case.values.len(), "{name}");
            let found = format.dequantise(&bytes).unwrap();
            assert_eq!(found.len(), case.values.len(), "{name}");
            let largest = case.values.iter().fold(0f32, |a, x| a.max(x.abs()));
            for (i, (found, want)) in found.iter().zip(&case.values).enumerate() {
                assert!((found - want).abs() <= 1e-6 * largest, "{name} {i}: {found} {want}");
            }
        }
    }

    #[test]
    fn other_formats_have_a_name() {
        assert_eq!([16, 9, 39, 4, 77].map(|kind| Format::of(kind).unwrap_err()), ["IQ2_XXS", "Q8_1", "MXFP4", "number 4", "number 77"]);
    }
}

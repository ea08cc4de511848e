//! Rotary position embedding, pairs (i, i + d/2): angles once a step, rotation of each head.

use super::isa::Isa;
use super::simd;
use crate::backend::Rope;
use crate::step::Step;

/// Inverse frequencies and the angles of the step they were last used in.
pub struct RopeTable {
    rope: Rope,
    max_len: usize,
}

/// Cosines and sines of a step's rows, `[rows][head_dim / 2]` each.
#[derive(Default)]
pub struct Angles {
    step: u64,
    rope: Option<Rope>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A rotation for positions below `max_len`.
    pub fn new(rope: &Rope, max_len: usize) -> Self {
        Self { rope: rope.clone(), max_len }
    }

    /// Elements a head that it rotates.
    pub fn head_dim(&self) -> usize {
        self.rope.inv_freq.len() * 2
    }

    /// First position out of reach.
    pub fn max_len(&self) -> usize {
        self.max_len
    }
}

impl Angles {
    /// Makes these the angles of the step's rows, unless they are already: layers share a rotation.
    ///
    /// The angle is taken in float64 and its cosine and sine rounded to float32.
    pub fn prepare(&mut self, step: &Step, table: &RopeTable) {
        if self.step == step.number && self.rope.as_ref() == Some(&table.rope) {
            return;
        }
        let rope = &table.rope;
        self.cos.clear();
        self.sin.clear();
        for &position in &step.positions {
            for &freq in &rope.inv_freq {
                let (sin, cos) = (position as f64 * f64::from(freq)).sin_cos();
                self.cos.push((cos * f64::from(rope.factor)) as f32);
                self.sin.push((sin * f64::from(rope.factor)) as f32);
            }
        }
        self.step = step.number;
        self.rope = Some(rope.clone());
    }

    /// Rotates one head of row `row` in place.
    pub fn rotate(&self, isa: Isa, row: usize, head: &mut [f32]) {
        let half = head.len() / 2;
        let (cos, sin) = (&self.cos[row * half..(row + 1) * half], &self.sin[row * half..(row + 1) * half]);
        let (low, high) = head.split_at_mut(half);
        simd::rotate(isa, low, high, cos, sin);
    }
}

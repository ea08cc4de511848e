//! Rotary position embedding, pairs (i, i + d/2): angles once a step, rotation of each head.

use super::isa::Isa;
use super::simd;
use crate::backend::Rope;
use crate::step::Step;

/// Inverse frequencies, and where the backend keeps their angles.
pub struct RopeTable {
    rope: Rope,
    max_len: usize,
    place: usize,
}

/// Cosines and sines of a step's rows, `[rows][head_dim / 2]` each.
#[derive(Default)]
pub struct Angles {
    step: Option<u64>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A rotation for positions below `max_len`, whose angles are the backend's `place`th.
    pub fn new(rope: &Rope, max_len: usize, place: usize) -> Self {
        Self { rope: rope.clone(), max_len, place }
    }

    /// Which of the backend's angles are its own.
    pub fn place(&self) -> usize {
        self.place
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
    /// Makes these the angles of the step's rows, unless they are already: layers share a rotation. They are always one table's.
    ///
    /// The angle is taken in float64 and its cosine and sine rounded to float32.
    pub fn prepare(&mut self, step: &Step, table: &RopeTable) {
        if self.step == Some(step.number) {
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
        self.step = Some(step.number);
    }

    /// Rotates one head of row `row` in place.
    pub fn rotate(&self, isa: Isa, row: usize, head: &mut [f32]) {
        let half = head.len() / 2;
        let (cos, sin) = (&self.cos[row * half..(row + 1) * half], &self.sin[row * half..(row + 1) * half]);
        let (low, high) = head.split_at_mut(half);
        simd::rotate(isa, low, high, cos, sin);
    }
}

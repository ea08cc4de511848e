//! What a replay gave: tensors to write, what to print, and what disagreed.

use crate::case::{CaseFile, Element};
use anyhow::{Result, ensure};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

pub struct Replayed {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    /// The case's description, with our own shares.
    json: Value,
    /// Which implementations ran, errors, agreement.
    pub lines: Vec<String>,
    /// Empty when everything agreed.
    pub failures: Vec<String>,
    /// No implementation but the scalar reference takes the geometry.
    pub scalar_alone: bool,
}

impl Replayed {
    pub fn new(case: &CaseFile<'_>) -> Self {
        Self { tensors: Vec::new(), json: case.json.clone(), lines: Vec::new(), failures: Vec::new(), scalar_alone: false }
    }

    pub fn set(&mut self, key: &str, value: Value) {
        if let Some(fields) = self.json.as_object_mut() {
            fields.insert(key.to_owned(), value);
        }
    }

    pub fn push<T: Element>(&mut self, name: &str, shape: &[usize], values: &[T]) {
        let mut bytes = Vec::with_capacity(std::mem::size_of_val(values));
        values.iter().for_each(|v| v.write(&mut bytes));
        self.tensors.push((name.to_owned(), T::DTYPE, shape.to_vec(), bytes));
    }

    /// Adds a tensor that must equal the file's, bit for bit, if the file has it.
    pub fn push_exact<T: Element>(&mut self, case: &CaseFile<'_>, name: &str, shape: &[usize], values: &[T]) -> Result<()> {
        self.push(name, shape, values);
        if let Some((expected, found)) = case.expected::<T>(name)? {
            let bits = |values: &[T]| {
                let mut bytes = Vec::new();
                values.iter().for_each(|v| v.write(&mut bytes));
                bytes
            };
            if found != shape {
                self.failures.push(format!("{name}: shape {shape:?}, expected {found:?}"));
            } else if bits(&expected) != bits(values) {
                let wrong = expected.iter().zip(values).filter(|(a, b)| bits(&[**a]) != bits(&[**b])).count();
                self.failures.push(format!("{name}: {wrong} of {} differ", values.len()));
            } else {
                self.lines.push(format!("{name} exact"));
            }
        }
        Ok(())
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let views: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect::<Result<_>>()?;
        let metadata = HashMap::from([("case".to_owned(), self.json.to_string())]);
        safetensors::serialize_to_file(views, Some(metadata), path)?;
        Ok(())
    }
}

/// ‖a − b‖ / ‖b‖; infinite where either holds something that is not a number or b is zero and a is not.
pub fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let norm: f64 = b.iter().map(|&b| square(f64::from(b))).sum();
    match (error / norm.max(f64::MIN_POSITIVE)).sqrt() {
        e if e.is_nan() => f64::INFINITY,
        e => e,
    }
}

/// Largest |a − b|; equal infinities agree, anything else that is not finite is infinitely wrong.
pub fn max_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a != b).fold(0.0, |m, (&a, &b)| match (f64::from(a) - f64::from(b)).abs() {
        e if e.is_nan() => f64::INFINITY,
        e => e.max(m),
    })
}

/// A length product that fails instead of wrapping.
pub fn count(factors: &[usize]) -> Result<usize> {
    let product = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f)).filter(|&n| n < 1 << 40);
    ensure!(product.is_some(), "sizes {factors:?} are out of range");
    Ok(product.unwrap_or(0))
}

//! What is held back: a product until it is known what follows it, a norm until it is known who reads it.

use super::super::launch::{Shape, launch};
use super::super::matmul::{self, Output};
use super::super::products::{self, Behind, Norm, Product};
use super::super::weights::Activations;
use super::CudaBackend;
use crate::backend::KernelError;

impl CudaBackend {
    pub(super) fn few(&self, n: usize, k: usize) -> bool {
        products::takes(self.rows, n, k)
    }

    /// Launches the product that is held back.
    pub(super) fn flush_product(&mut self) -> Result<(), KernelError> {
        match self.held.product.take() {
            Some(product) if product.wide => self.run_product(&product, Behind::Wide(product.out)),
            Some(product) => self.run_product(&product, Behind::Store(product.out)),
            None => Ok(()),
        }
    }

    pub(super) fn run_product(&mut self, product: &Product, behind: Behind) -> Result<(), KernelError> {
        if self.few(product.n, product.k) {
            let t = self.t();
            return products::run(&self.device, &mut self.cubins, t, self.rows, product, behind);
        }
        let (out, output) = match behind {
            Behind::Store(out) => (out, Output::Rounded),
            Behind::Wide(out) => (out, Output::Wide),
            Behind::Add(out) => (out, Output::Added),
            Behind::Gated(..) => return Err(KernelError::Invalid("a gate in a product of many rows".into())),
        };
        // Tensors have room for whole blocks of rows, and nobody reads what is behind the step's.
        let m = self.rows.next_multiple_of(if self.rows > 64 { 64 } else { 16 });
        let bf16 = self.options.activations == Activations::Bf16;
        let shape = matmul::Product { m, n: product.n, k: product.k, bf16, output };
        // SAFETY: the tensors have `m` rows of these widths, the matrix its rows and columns.
        unsafe { self.products.run(&self.device, shape, product.x, product.w, out) }
    }

    /// Leaves a norm to the product that reads it, where one kernel can do both.
    pub(super) fn hold_norm(&mut self, norm: Norm) -> Result<(), KernelError> {
        self.held.norm = Some(norm);
        if self.few(8, norm.cols) && products::takes_norm(self.rows) { Ok(()) } else { self.flush_norm(norm.out) }
    }

    /// Launches the norm that is held back, if `tensor` is what it gives.
    pub(super) fn flush_norm(&mut self, tensor: u64) -> Result<(), KernelError> {
        match self.held.norm {
            Some(norm) if norm.out == tensor => {
                self.held.norm = None;
                let kernel = self.cubins.get(&format!("rms_norm_{}", self.t()))?;
                let shape = Shape { early: true, ..Shape::new((self.rows as u32, 1), 256) };
                launch!(&self.device, kernel, shape, norm.x, norm.w, norm.eps, norm.cols as i32, norm.out)
            }
            _ => Ok(()),
        }
    }
}

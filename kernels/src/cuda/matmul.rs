//! Matrix products by cuBLASLt: out = x · Wᵀ with float32 sums, one plan a shape.

use super::device::Device;
use super::memory::DeviceBuffer;
use super::unusable::Unusable;
use crate::backend::KernelError;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdeviceptr;
use std::collections::HashMap;
use std::ffi::c_void;

/// What Hopper's kernels like to have; smaller chips use less of it.
pub(super) const WORKSPACE: usize = 32 << 20;

/// One product's shape: `m` rows of `k` by `n` rows of `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Operands are bfloat16, else fp16.
    pub bf16: bool,
    /// What becomes of the sums.
    pub output: Output,
}

/// What becomes of a product's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Output {
    /// Rounded to the operands' type.
    Rounded,
    /// Stored as float32.
    Wide,
    /// Added to what is there, in float32.
    Added,
}

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// A handle with its plans.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    plans: HashMap<Product, Plan>,
}

// SAFETY: handles and descriptors have no thread of their own; one owner.
unsafe impl Send for Products {}

fn failed(error: CublasError) -> KernelError {
    match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED | sys::cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR => {
            KernelError::Device(format!("cuBLASLt: {error}"))
        }
        _ => KernelError::Invalid(format!("cuBLASLt: {error}")),
    }
}

/// Whether the library can be loaded.
pub(super) fn is_present() -> bool {
    // SAFETY: only tries to load it.
    unsafe { sys::is_culib_present() }
}

impl Products {
    pub fn new(device: &Device) -> Result<Self, Unusable> {
        let driver = |e: KernelError| Unusable::Driver(e.to_string());
        let workspace = DeviceBuffer::new(device, WORKSPACE, "matrix products' workspace").map_err(driver)?;
        let handle = result::create_handle().map_err(|e| Unusable::Driver(format!("cuBLASLt: {e}")))?;
        Ok(Self { handle, workspace, plans: HashMap::new() })
    }

    /// Enqueues out = x · wᵀ, or out += x · wᵀ; all row-major and contiguous.
    ///
    /// # Safety
    /// The addresses reach as much as the shape says.
    pub unsafe fn run(
        &mut self,
        device: &Device,
        shape: Product,
        x: CUdeviceptr,
        w: CUdeviceptr,
        out: CUdeviceptr,
    ) -> Result<(), KernelError> {
        if !self.plans.contains_key(&shape) {
            let plan = self.plan(shape)?;
            self.plans.insert(shape, plan);
        }
        let plan = &self.plans[&shape];
        let (alpha, beta) = (1.0f32, if shape.output == Output::Added { 1.0f32 } else { 0.0 });
        // SAFETY: the plan was made for these shapes; the caller vouches for the addresses.
        unsafe {
            result::matmul(
                self.handle,
                plan.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                w as *const c_void,
                plan.w,
                x as *const c_void,
                plan.x,
                out as *const c_void,
                plan.out,
                out as *mut c_void,
                plan.out,
                &raw const plan.algorithm,
                self.workspace.ptr() as *mut c_void,
                self.workspace.bytes(),
                device.stream.cu_stream().cast(),
            )
        }
        .map_err(failed)
    }

    // cuBLASLt thinks in columns: outᵀ [n × m] = W [k × n, transposed] · xᵀ [k × m].
    fn plan(&self, p: Product) -> Result<Plan, KernelError> {
        let kind = if p.bf16 { sys::cudaDataType_t::CUDA_R_16BF } else { sys::cudaDataType_t::CUDA_R_16F };
        let out_kind = if p.output == Output::Rounded { kind } else { sys::cudaDataType_t::CUDA_R_32F };
        let desc =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F).map_err(failed)?;
        let transposed: i32 = 1; // CUBLAS_OP_T
        // SAFETY: the attribute is an operation of that size.
        unsafe {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
            result::set_matmul_desc_attribute(desc, attribute, (&raw const transposed).cast(), size_of_val(&transposed)).map_err(failed)?;
        }
        let (m, n, k) = (p.m as u64, p.n as u64, p.k as u64);
        let w = result::create_matrix_layout(kind, k, n, k as i64).map_err(failed)?;
        let x = result::create_matrix_layout(kind, k, m, k as i64).map_err(failed)?;
        let out = result::create_matrix_layout(out_kind, n, m, n as i64).map_err(failed)?;
        let preference = result::create_matmul_pref().map_err(failed)?;
        // SAFETY: the attribute is a size; every descriptor was just made.
        let found = unsafe {
            let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let bytes = self.workspace.bytes();
            result::set_matmul_pref_attribute(preference, attribute, (&raw const bytes).cast(), size_of_val(&bytes)).map_err(failed)?;
            let found = result::get_matmul_algo_heuristic(self.handle, desc, w, x, out, out, preference);
            result::destroy_matmul_pref(preference).map_err(failed)?;
            found.map_err(failed)?
        };
        Ok(Plan { desc, w, x, out, algorithm: found.algo })
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        for plan in self.plans.values() {
            // SAFETY: made in `plan`, destroyed once; an error at the end concerns nobody.
            unsafe {
                let _ = result::destroy_matmul_desc(plan.desc);
                let _ = result::destroy_matrix_layout(plan.w);
                let _ = result::destroy_matrix_layout(plan.x);
                let _ = result::destroy_matrix_layout(plan.out);
            }
        }
        // SAFETY: created in `new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

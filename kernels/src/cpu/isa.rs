//! Which instructions this processor has, looked up once.

/// Instruction sets that kernels are compiled for, best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the target guarantees.
    Portable,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with bfloat16 dot products.
    Avx512Bf16,
    /// The same with tile products (AMX).
    Amx,
}

impl Isa {
    /// The best this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx512 && is_x86_feature_detected!("avx512bf16") {
                #[cfg(target_os = "linux")]
                if super::matmul::tiles_available() {
                    return Isa::Amx;
                }
                return Isa::Avx512Bf16;
            }
            if avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// All that this processor has, best first.
    pub fn available() -> Vec<Self> {
        let best = Self::detect();
        [Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Portable].into_iter().filter(|&isa| isa <= best).collect()
    }

    /// The name in status.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512+bf16",
            Isa::Amx => "avx512+bf16+amx",
        }
    }
}

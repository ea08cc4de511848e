//! Which instructions this processor has, looked up once.

/// Instruction sets that kernels are compiled for. Within one architecture a later one has all that an earlier one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the target guarantees.
    Portable,
    /// Arm's NEON, by fused multiply-add.
    Neon,
    /// The same with bfloat16 products (Neoverse V1 and later; not Cortex-A78).
    NeonBf16,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with bfloat16 dot products.
    Avx512Bf16,
    /// The same with tile products (AMX).
    Amx,
}

/// What this program has kernels for, best first.
#[cfg(target_arch = "x86_64")]
const BUILT: &[Isa] = &[Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Portable];
#[cfg(target_arch = "aarch64")]
const BUILT: &[Isa] = &[Isa::NeonBf16, Isa::Neon, Isa::Portable];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const BUILT: &[Isa] = &[Isa::Portable];

impl Isa {
    /// The best of `available`.
    pub fn detect() -> Self {
        Self::available().first().copied().unwrap_or(Isa::Portable)
    }

    /// All that this processor has, best first; none above the one that the environment variable `SKIP_ISA` names, if it names one.
    pub fn available() -> Vec<Self> {
        let most = std::env::var("SKIP_ISA").ok().and_then(|name| Self::named(&name)).unwrap_or(Isa::Amx);
        BUILT.iter().copied().filter(|&isa| isa <= most && isa.is_here()).collect()
    }

    fn named(name: &str) -> Option<Self> {
        BUILT.iter().copied().find(|isa| isa.name() == name)
    }

    /// Whether the processor, and where needed the system, has it.
    fn is_here(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => Isa::Neon.is_here() && std::arch::is_aarch64_feature_detected!("bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_here() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => Isa::Avx512Bf16.is_here() && super::matmul::tiles_available(),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Whether it multiplies bfloat16 by bfloat16.
    pub fn multiplies_bfloat16(self) -> bool {
        matches!(self, Isa::NeonBf16 | Isa::Avx512Bf16 | Isa::Amx)
    }

    /// The name in status.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neon+bf16",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512+bf16",
            Isa::Amx => "avx512+bf16+amx",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_begins_with_the_best_and_ends_with_the_portable_one() {
        let available = Isa::available();
        assert_eq!(available[0], Isa::detect());
        assert_eq!(available.last(), Some(&Isa::Portable));
        assert!(available.iter().all(|isa| Isa::named(isa.name()) == Some(*isa)));
        assert!(available.is_sorted_by(|a, b| a > b));
        #[cfg(target_arch = "aarch64")]
        assert!(available.contains(&Isa::Neon));
        #[cfg(target_arch = "x86_64")]
        assert!(!available.contains(&Isa::Neon) && !available.contains(&Isa::NeonBf16));
    }
}

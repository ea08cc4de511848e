// Kernels that must never be used: they stand in for real ones of the same names where a GPU is at hand to show that (tools/check-qualify).
// tools/build-kernels does not compile this folder.
//
//   -D FAULT=1   dense prefill writes values that are none
//   -D FAULT=2   dense decode traps
//   -D FAULT=3   skipping decode never ends
#include "../common/params.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define ALL_TYPES(KERNEL) KERNEL(bf16, __nv_bfloat16) KERNEL(fp16, __half) KERNEL(fp16bf16, __nv_bfloat16)

#if FAULT == 1
#define WRONG(NAME, T)                                                                                          \
    extern "C" __global__ void attn_prefill_##NAME##_d64_dense_mma(const __grid_constant__ skip::AttnParams p) { \
        for (int i = 0; i < p.n_seqs; ++i) {                                                                     \
            const auto seq = p.seqs[i];                                                                          \
            T* out = static_cast<T*>(p.out) + int64_t(seq.row) * p.heads * 64;                                   \
            for (int at = threadIdx.x; at < seq.q_len * p.heads * 64; at += blockDim.x) out[at] = T(0.5f);       \
        }                                                                                                        \
    }
ALL_TYPES(WRONG)
#elif FAULT == 2
#define TRAP(NAME, T) \
    extern "C" __global__ void attn_decode_##NAME##_d64_dense(const __grid_constant__ skip::AttnParams p) { __trap(); }
ALL_TYPES(TRAP)
#else
#define HANG(NAME, T)                                                                                      \
    extern "C" __global__ void attn_decode_##NAME##_d64_skip(const __grid_constant__ skip::AttnParams p) { \
        volatile int* never = static_cast<volatile int*>(p.workspace);                                     \
        while (*never != 0x5eed) {                                                                         \
        }                                                                                                  \
    }
ALL_TYPES(HANG)
#endif

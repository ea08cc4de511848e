// Kernels that must never be used: they stand in for real ones of the same names where a GPU is at hand to show that (tools/check-qualify).
// tools/build-kernels does not compile this folder.
//
//   -D FAULT=1   dense prefill writes values that are none
//   -D FAULT=2   dense decode traps
//   -D FAULT=3   skipping decode never ends
//   -D FAULT=4   Hopper's dense prefill writes values that are none
//   -D FAULT=5   Hopper's dense prefill traps
//   -D FAULT=6   Hopper's dense prefill never ends
//   -D FAULT=7   measuring decode writes values that are none
#include "../common/params.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define ALL_TYPES(KERNEL) KERNEL(bf16, __nv_bfloat16) KERNEL(fp16, __half) KERNEL(fp16bf16, __nv_bfloat16)

template <typename T>
__device__ void write_none(const skip::AttnParams& p) {
    for (int i = 0; i < p.n_seqs; ++i) {
        const auto seq = p.seqs[i];
        T* out = static_cast<T*>(p.out) + int64_t(seq.row) * p.heads * 64;
        for (int at = threadIdx.x; at < seq.q_len * p.heads * 64; at += blockDim.x) out[at] = T(0.5f);
    }
}

__device__ void never_end(const void* at) {
    while (*static_cast<const volatile int*>(at) != 0x5eed) {
    }
}

#if FAULT == 1
#define WRONG(NAME, T) \
    extern "C" __global__ void attn_prefill_##NAME##_d64_dense_mma(const __grid_constant__ skip::AttnParams p) { write_none<T>(p); }
ALL_TYPES(WRONG)
#elif FAULT == 2
#define TRAP(NAME, T) \
    extern "C" __global__ void attn_decode_##NAME##_d64_dense(const __grid_constant__ skip::AttnParams p) { __trap(); }
ALL_TYPES(TRAP)
#elif FAULT == 3
#define HANG(NAME, T) \
    extern "C" __global__ void attn_decode_##NAME##_d64_skip(const __grid_constant__ skip::AttnParams p) { never_end(p.workspace); }
ALL_TYPES(HANG)
#elif FAULT == 4
#define WRONG(NAME, T) \
    extern "C" __global__ void attn_prefill_##NAME##_d64_dense_wgmma(const __grid_constant__ skip::AttnParams p) { write_none<T>(p); }
ALL_TYPES(WRONG)
#elif FAULT == 5
#define TRAP(NAME, T) \
    extern "C" __global__ void attn_prefill_##NAME##_d64_dense_wgmma(const __grid_constant__ skip::AttnParams p) { __trap(); }
ALL_TYPES(TRAP)
#elif FAULT == 6
#define HANG(NAME, T) \
    extern "C" __global__ void attn_prefill_##NAME##_d64_dense_wgmma(const __grid_constant__ skip::AttnParams p) { never_end(p.counters); }
ALL_TYPES(HANG)
#else
#define WRONG(NAME, T) \
    extern "C" __global__ void attn_decode_##NAME##_d64_measure(const __grid_constant__ skip::AttnParams p) { write_none<T>(p); }
ALL_TYPES(WRONG)
#endif

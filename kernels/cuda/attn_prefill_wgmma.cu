// Hopper's prefill: wgmma on swizzled tiles, one warpgroup that loads and two that compute. Votes: 128 rows x 128 keys, as the portable
// kernel's, so that one table serves both.
// Architectures: 90a
//
// At head_dim 64 a warpgroup owns 128 rows (two products of 64) and votes alone; a block holds two tiles of one head. At head_dim 128 that
// does not fit the registers: the two warpgroups share a tile and vote together, and each asks for the next tile's scores before it votes, so
// that the tensor cores have work while they wait for one another. Windowed layers and head_dim 256 stay with the portable kernel.
// Dense and skip are separate kernels; a sequence without a threshold is bit-equal in both.
#include "common/prefill_wgmma.cuh"

#define PREFILL_ONE(NAME, T, TO, D, SUFFIX, SKIP)                                                                                              \
    extern "C" __global__ void __launch_bounds__(skip::kHopperThreads, 1) attn_prefill_##NAME##_d##D##_##SUFFIX##_wgmma(const __grid_constant__ skip::AttnParams p) { \
        skip::prefill_hopper<T, TO, D, SKIP>(p);                                                                                                \
    }
#define PREFILL(NAME, T, TO)                       \
    PREFILL_ONE(NAME, T, TO, 64, dense, false)     \
    PREFILL_ONE(NAME, T, TO, 64, skip, true)       \
    PREFILL_ONE(NAME, T, TO, 128, dense, false)    \
    PREFILL_ONE(NAME, T, TO, 128, skip, true)
PREFILL(bf16, __nv_bfloat16, __nv_bfloat16)
#ifndef BF16_ONLY
PREFILL(fp16, __half, __half)
PREFILL(fp16bf16, __half, __nv_bfloat16)
#endif

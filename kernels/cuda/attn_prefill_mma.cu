// Portable prefill: mma.sync and cp.async, every chip from sm_80 on. Votes: 128 rows x 128 keys, keys ascending, running maximum.
//
// A block owns 128 query rows of one head. WARPS warps stand in a grid of (128 / (16 MT)) row groups and KS key halves: at head_dim 128 two
// warps share 32 rows and take 64 keys of each tile, because B fragments read once then serve 32 rows and shared memory is what limits
// mma.sync on Hopper. The halves keep their own running maximum and are merged once, at the end; the vote sees both halves' maximum.
// At head_dim 256 two stages of K and V do not fit: half tiles of 64 keys stream through three slots, K's two before V's two.
// Dense and skip are separate kernels; a sequence without a threshold is bit-equal in both.
#include "common/prefill.cuh"

#define PREFILL_ONE(NAME, T, TO, D, WARPS, MT, BLOCKS, SUFFIX, SKIP)                                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) attn_prefill_##NAME##_d##D##_##SUFFIX##_mma(const __grid_constant__ skip::AttnParams p) { \
        skip::prefill<T, TO, D, WARPS, MT, SKIP>(p);                                                                                                         \
    }
#define PREFILL(NAME, T, TO, D, WARPS, MT, BLOCKS)                    \
    PREFILL_ONE(NAME, T, TO, D, WARPS, MT, BLOCKS, dense, false)      \
    PREFILL_ONE(NAME, T, TO, D, WARPS, MT, BLOCKS, skip, true)
#define PREFILL_ALL(NAME, T, TO)          \
    PREFILL(NAME, T, TO, 64, 4, 2, 2)     \
    PREFILL(NAME, T, TO, 128, 8, 2, 1)    \
    PREFILL(NAME, T, TO, 256, 8, 1, 1)
PREFILL_ALL(bf16, __nv_bfloat16, __nv_bfloat16)
PREFILL_ALL(fp16, __half, __half)
PREFILL_ALL(fp16bf16, __half, __nv_bfloat16)

// Decode for every chip from one source: a dense kernel, and the pair scan / gather that skips.
//
// One query token a sequence; the G <= 8 heads of a KV group are the n = 8 columns of mma.m16n8k16, keys and dimensions its rows, so group
// sizes 1 to 8 waste no accumulator. The order of dimensions inside an MMA is free, so each lane reads 16 contiguous bytes of K and V and no
// transposition through shared memory is needed. A warp takes runs of 32 keys through a ring of its own, filled by cp.async: bytes in
// flight are what decode lives on, and no block barrier stands in the loop.
//
// Every block takes an equal contiguous share of all (sequence, KV head, run) units, derived from device memory, so the grid never
// changes. A segment is one (sequence, KV head); blocks that share one leave partial sums, merged in index order by the last to arrive.
// The arrival counters wrap to zero by themselves, so a captured graph can be replayed.
#include "common/decode.cuh"

#define DECODE_ONE(NAME, T, TO, D, SUFFIX, KERNEL)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(skip::decode_threads(skip::Decode::KERNEL, D, skip::kRoomy), 1) attn_decode_##NAME##_d##D##_##SUFFIX(const __grid_constant__ skip::AttnParams p) { \
        skip::decode<T, TO, D, skip::Decode::KERNEL>(p);                                                                                                       \
    }
#define DECODE(NAME, T, TO, D)                    \
    DECODE_ONE(NAME, T, TO, D, dense, kDense)     \
    DECODE_ONE(NAME, T, TO, D, guarded, kGuarded) \
    DECODE_ONE(NAME, T, TO, D, scan, kScan)       \
    DECODE_ONE(NAME, T, TO, D, gather, kGather)
#define DECODE_ALL(NAME, T, TO) DECODE(NAME, T, TO, 64) DECODE(NAME, T, TO, 128) DECODE(NAME, T, TO, 256)
DECODE_ALL(bf16, __nv_bfloat16, __nv_bfloat16)
DECODE_ALL(fp16, __half, __half)
DECODE_ALL(fp16bf16, __half, __nv_bfloat16)

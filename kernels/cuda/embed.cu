// Token ids to float32 rows. An id may be one that the sampler has drawn and the host has not seen yet.
//
// Grid (rows), 128 threads. `token[r]` < 0 stands for `drawn[-1 - token[r]]`; an id outside [0, vocab), as a padding row or a failed draw
// leaves it, is row 0. `cols` is a multiple of 8.
#include "common/ops.cuh"

namespace skip {

constexpr int kEmbedThreads = 128;

template <typename W>
__device__ __forceinline__ void embed(const W* table, const int* token, const int* drawn, float scale, int cols, float* x, int vocab) {
    pdl_launch();
    pdl_wait();
    const int64_t row = blockIdx.x;
    int id = token[row];
    if (id < 0) id = drawn[-1 - id];
    if (id < 0 || id >= vocab) id = 0;
    for (int c = threadIdx.x * 8; c < cols; c += kEmbedThreads * 8) {
        float v[8];
        load8(table + int64_t(id) * cols + c, v);
#pragma unroll
        for (float& e : v) e *= scale;
        store8(x + row * cols + c, v);
    }
}

}  // namespace skip

#define EMBED(NAME, W)                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(skip::kEmbedThreads)                                                                             \
        embed_##NAME(const W* table, const int* token, const int* drawn, float scale, int cols, float* x, int vocab) {                            \
        skip::embed(table, token, drawn, scale, cols, x, vocab);                                                                                  \
    }
EMBED(bf16, __nv_bfloat16)
EMBED(fp16, __half)
EMBED(fp32, float)

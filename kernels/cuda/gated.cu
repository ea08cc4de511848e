// out = act(gate) * up over packed [gate | up] rows.
//
// Grid (rows, y) with any y >= 1 blocks sharing a row, 256 threads, `cols` (of the output) a multiple of 8.
#include "common/ops.cuh"

namespace skip {

constexpr int kGatedThreads = 256;

template <typename T, Act ACT>
__device__ __forceinline__ void gated(const T* gate_up, int cols, T* out) {
    pdl_launch();
    pdl_wait();
    const int64_t row = blockIdx.x;
    const T* gate = gate_up + row * 2 * cols;
    for (int c = (blockIdx.y * kGatedThreads + threadIdx.x) * 8; c < cols; c += gridDim.y * kGatedThreads * 8) {
        float g[8], up[8];
        load8(gate + c, g);
        load8(gate + cols + c, up);
#pragma unroll
        for (int i = 0; i < 8; ++i) g[i] = activate<ACT>(g[i]) * up[i];
        store8(out + row * cols + c, g);
    }
}

}  // namespace skip

#define GATED(NAME, T, ACT)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(skip::kGatedThreads) gated_##NAME##_##ACT(const T* gate_up, int cols, T* out) {                    \
        skip::gated<T, skip::Act::ACT>(gate_up, cols, out);                                                                                       \
    }
GATED(bf16, __nv_bfloat16, silu)
GATED(bf16, __nv_bfloat16, gelu_tanh)
GATED(fp16, __half, silu)
GATED(fp16, __half, gelu_tanh)

// Picks rows: out[i] = in[index[i]]; zeros where the index is negative (padding).
//
// Grid (n), 128 threads; a row is a multiple of 16 bytes.
#include "common/ops.cuh"

namespace skip {

constexpr int kGatherThreads = 128;

template <typename X>
__device__ __forceinline__ void gather_rows(const X* in, const int* index, int cols, X* out) {
    pdl_launch();
    pdl_wait();
    constexpr int kVector = 16 / sizeof(X);
    const int from = index[blockIdx.x];
    for (int c = threadIdx.x * kVector; c < cols; c += kGatherThreads * kVector) {
        const uint4 v = from < 0 ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(in + int64_t(from) * cols + c);
        *reinterpret_cast<uint4*>(out + int64_t(blockIdx.x) * cols + c) = v;
    }
}

}  // namespace skip

#define GATHER(NAME, X)                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(skip::kGatherThreads) gather_rows_##NAME(const X* in, const int* index, int cols, X* out) {        \
        skip::gather_rows(in, index, cols, out);                                                                                                  \
    }
GATHER(f32, float)
GATHER(b16, uint16_t)

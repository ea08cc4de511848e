// The two ends of a step: its inputs come from the host's memory, what it drew and voted goes back there, with no copy engine in between.
//
// `staging` and `back` are pinned host memory, mapped into the device's addresses; `block` is the step's block in device memory. All are
// vectors of 16 bytes. A step's first says its number and how many vectors it is long.
//
// fetch_step: any grid, 256 threads. Every thread's first vector is asked for without waiting for the length, so staging and block have
// room for one a thread at least. return_step: one block; `count` vectors from vector `from` on go behind the first of `back`, then the number
// goes there, which says that they have arrived.
#include "common/ops.cuh"

namespace skip {

constexpr int kStepThreads = 256;
constexpr int kFetchMore = 4;  // vectors a thread has under way, beyond its first

}  // namespace skip

extern "C" __global__ void __launch_bounds__(skip::kStepThreads) fetch_step(const uint4* staging, uint4* block) {
    skip::pdl_launch();
    skip::pdl_wait();
    const uint32_t stride = gridDim.x * skip::kStepThreads;
    uint32_t i = blockIdx.x * skip::kStepThreads + threadIdx.x;
    // Never from a cache: the host has written since.
    const uint32_t count = __ldcv(staging).y;
    block[i] = __ldcv(staging + i);
    for (i += stride; i < count; i += skip::kFetchMore * stride) {
        uint4 v[skip::kFetchMore];
#pragma unroll
        for (int j = 0; j < skip::kFetchMore; ++j)
            if (i + j * stride < count) v[j] = __ldcv(staging + i + j * stride);
#pragma unroll
        for (int j = 0; j < skip::kFetchMore; ++j)
            if (i + j * stride < count) block[i + j * stride] = v[j];
    }
}

extern "C" __global__ void __launch_bounds__(skip::kStepThreads) return_step(const uint4* block, uint32_t from, uint32_t count, uint4* back) {
    skip::pdl_launch();
    skip::pdl_wait();
    const uint32_t number = block->x;
    for (uint32_t i = threadIdx.x; i < count; i += skip::kStepThreads) back[1 + i] = block[from + i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    // Behind the barrier this is behind the whole block's writes, for the host too.
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(back), "r"(number) : "memory");
}

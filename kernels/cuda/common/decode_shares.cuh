// Who does what in decode: every block derives its own equal share of the launch from device memory.
#pragma once
#include "launch.h"
#include "params.h"

namespace skip {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kRoomy = false;
#else
constexpr bool kRoomy = true;
#endif

__device__ __forceinline__ DecodeLayout layout_of(const AttnParams& p, int d) { return DecodeLayout(int64_t(p.n_seqs) * p.kv_heads, gridDim.x, p.max_runs, d); }

// The blocks that hold a part of a segment.
struct Meeting {
    int segment, first_block, parts;
};

// The block's share of the launch: units (stages, or survivors) of all segments, flattened, `each` to a block.
struct Shares {
    int segments, total, each, begin, end;
    const int* first;  // shared memory: first unit of each segment, and the total
    __device__ __forceinline__ int units(int s) const { return first[s + 1] - first[s]; }
    // The segment that holds a unit.
    __device__ __forceinline__ int segment_of(int unit) const {
        int lo = 0, hi = segments;
#pragma unroll 1
        while (lo + 1 < hi) {
            const int mid = (lo + hi) / 2;
            (first[mid] <= unit ? lo : hi) = mid;
        }
        return lo;
    }
    __device__ __forceinline__ Meeting meeting(int segment) const {
        const int begin = unsigned(first[segment]) / unsigned(each);
        return {segment, begin, int(unsigned(first[segment + 1] - 1) / unsigned(each)) - begin + 1};
    }
};

// Counts to `parts` and returns to zero; true for the last. Releases what the block wrote before its last barrier, acquires what others did.
__device__ __forceinline__ bool arrive_at(unsigned* counter, int parts) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(parts - 1) : "memory");
    return before == unsigned(parts - 1);
}

// units_of(segment) summed up in shared memory; every thread of the block.
template <int WARPS, typename F>
__device__ __forceinline__ Shares share_out(int segments, F units_of) {
    __shared__ int first[kMaxSegments + 1], sums[WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, each = (segments + (WARPS * 32) - 1) / (WARPS * 32);
    int mine = 0;
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
        const int s = threadIdx.x * each + i;
        if (s < segments) {
            first[s] = mine;  // within the thread's stretch, for now
            mine += units_of(s);
        }
    }
    int scan = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int x = __shfl_up_sync(0xffffffffu, scan, d);
        if (lane >= d) scan += x;
    }
    if (lane == 31) sums[warp] = scan;
    __syncthreads();
    int at = scan - mine, total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) at += sums[w];
        total += sums[w];
    }
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
        const int s = threadIdx.x * each + i;
        if (s < segments) first[s] += at;
    }
    if (threadIdx.x == 0) first[segments] = total;
    __syncthreads();
    Shares x;
    x.segments = segments;
    x.total = total;
    x.first = first;
    // A multiple of the warps: they take turns, so less would not end sooner.
    x.each = (unsigned(total) + gridDim.x * WARPS - 1) / (gridDim.x * WARPS) * WARPS;
    x.begin = min(int(blockIdx.x) * x.each, total);
    x.end = min(x.begin + x.each, total);
    return x;
}

// The stages of KEYS keys that a sequence's query sees; behind a window's edge nothing is read.
template <int KEYS>
__device__ __forceinline__ int first_stage(const AttnParams& p, const Seq& s) {
    return p.window > 0 ? max(s.kv_len - p.window, 0) / KEYS : 0;
}
template <int KEYS>
__device__ __forceinline__ int stages_of(const AttnParams& p, const Seq& s) {
    return s.q_len > 0 ? (s.kv_len + KEYS - 1) / KEYS - first_stage<KEYS>(p, s) : 0;
}

// Byte offset of a stage in the K or V pool.
template <int D, int KEYS>
__device__ __forceinline__ int64_t stage_offset(const AttnParams& p, const Seq& seq, int kv_head, int stage) {
    const int page = p.block_tables[seq.pages + stage / (kPage / KEYS)];
    return ((int64_t(page) * p.kv_heads + kv_head) * kPage + (stage % (kPage / KEYS)) * KEYS) * D * 2;
}

template <int D>
__device__ __forceinline__ const char* query_of(const AttnParams& p, const Seq& seq, int kv_head) {
    return static_cast<const char*>(p.q) + (seq.row * p.q_stride + int64_t(kv_head) * (p.heads / p.kv_heads) * D) * 2;
}

}  // namespace skip

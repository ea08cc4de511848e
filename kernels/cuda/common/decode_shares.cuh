// Who does what in decode: every block derives its own equal share of the launch from device memory.
#pragma once
#include "launch.h"
#include "params.h"

namespace skip {

__device__ __forceinline__ DecodeLayout layout_of(const AttnParams& p, int d) { return DecodeLayout(int64_t(p.n_seqs) * p.kv_heads, gridDim.x, p.max_runs, d); }

// The block's share of the launch: units (runs, or survivors) of all segments, flattened.
struct Shares {
    int segments, total, blocks, begin, end;  // blocks: those with a share
    const int* first;  // shared memory: first unit of each segment, and the total
    __device__ __forceinline__ int units(int s) const { return first[s + 1] - first[s]; }
    // 32 bits hold the product: 2^32 / 148 blocks is 29 million runs, 0.9 billion keys.
    __device__ __forceinline__ int begin_of(int block) const { return int(unsigned(total) * unsigned(block) / unsigned(blocks)); }
    // The segment that holds a unit.
    __device__ __forceinline__ int segment_of(int unit) const {
        int lo = 0, hi = segments;
        while (lo + 1 < hi) {
            const int mid = (lo + hi) / 2;
            (first[mid] <= unit ? lo : hi) = mid;
        }
        return lo;
    }
    // The block that owns a unit.
    __device__ __forceinline__ int owner(int unit) const {
        int b = int(unsigned(unit) * unsigned(blocks) / unsigned(total));
        while (begin_of(b + 1) <= unit) ++b;
        return b;
    }
};

// units_of(segment) summed up in shared memory; every thread of the block.
template <typename F>
__device__ __forceinline__ Shares share_out(int segments, F units_of) {
    __shared__ int first[kMaxSegments + 1], sums[kDecodeWarps];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, each = (segments + kDecodeThreads - 1) / kDecodeThreads;
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
    for (int w = 0; w < kDecodeWarps; ++w) {
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
    x.blocks = min(int(gridDim.x), total);
    const bool idle = int(blockIdx.x) >= x.blocks;
    x.begin = idle ? 0 : x.begin_of(blockIdx.x);
    x.end = idle ? 0 : x.begin_of(blockIdx.x + 1);
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

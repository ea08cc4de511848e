// The vote of a segment that one block takes once all its runs are scored, and the list of survivors.
#pragma once
#include "decode_shares.cuh"
#include "launch.h"
#include "params.h"

namespace skip {

// Group votes of one segment with the row's true maximum: the ascending list of survivors. Every thread of the block.
template <int D, int WARPS>
__device__ void vote(const AttnParams& p, int segment, const Seq& seq, float ln) {
    __shared__ float s_top[WARPS][kHeads];
    __shared__ int s_count[32 / WARPS][WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, runs = stages_of<kRun>(p, seq), group = p.heads / p.kv_heads;
    const float threshold = ln / p.scale;
    const DecodeLayout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);
    const float* run_max = reinterpret_cast<const float*>(ws + layout.run_max) + int64_t(segment) * p.max_runs * kHeads;
    // A chunk is kRounds runs a thread, all loaded before the first is looked at; one chunk (the common case) is read once.
    constexpr int kRounds = 32 / WARPS, kChunk = kRounds * WARPS * 32;
    float4 x[kRounds][2];
    auto load = [&](int base) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            const int run = base + r * WARPS * 32 + threadIdx.x;
            const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            x[r][0] = run < runs ? __ldcg(reinterpret_cast<const float4*>(run_max + run * kHeads)) : none;
            x[r][1] = run < runs ? __ldcg(reinterpret_cast<const float4*>(run_max + run * kHeads) + 1) : none;
        }
    };
    float m[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) m[h] = -INFINITY;
    for (int base = 0; base < runs; base += kChunk) {
        load(base);
#pragma unroll
        for (int r = 0; r < kRounds; ++r)
#pragma unroll
            for (int h = 0; h < kHeads; ++h) m[h] = fmaxf(m[h], reinterpret_cast<const float*>(&x[r][0])[h]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int d = 1; d < 32; d *= 2) m[h] = fmaxf(m[h], __shfl_xor_sync(0xffffffffu, m[h], d));
    __syncthreads();
    if (lane == 0) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) s_top[warp][h] = m[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int w = 0; w < WARPS; ++w) m[h] = fmaxf(m[h], s_top[w][h]);
    if (threadIdx.x < kHeads) {
        float top = s_top[0][threadIdx.x];
        for (int w = 1; w < WARPS; ++w) top = fmaxf(top, s_top[w][threadIdx.x]);
        reinterpret_cast<float*>(ws + layout.tops)[segment * kHeads + threadIdx.x] = top;
    }
    int* list = reinterpret_cast<int*>(ws + layout.lists) + int64_t(segment) * p.max_runs;
    uint8_t* kept = p.kept ? p.kept + p.kept_offset[segment / p.kv_heads] + int64_t(segment % p.kv_heads) * runs : nullptr;
    int total = 0;
    for (int base = 0; base < runs; base += kChunk) {
        if (runs > kChunk) load(base);
        unsigned ballot[kRounds];
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            const int run = base + r * WARPS * 32 + threadIdx.x;
            bool keep = false;
#pragma unroll
            for (int h = 0; h < kHeads; ++h) keep |= h < group && !(reinterpret_cast<const float*>(&x[r][0])[h] - m[h] < threshold);
            keep &= run < runs;
            if (kept && run < runs) kept[run] = keep;
            ballot[r] = __ballot_sync(0xffffffffu, keep);
            if (lane == 0) s_count[r][warp] = __popc(ballot[r]);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            int at = total + __popc(ballot[r] & ((1u << lane) - 1));
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                if (w < warp) at += s_count[r][w];
                total += s_count[r][w];
            }
            if (ballot[r] >> lane & 1) list[at] = base + r * WARPS * 32 + threadIdx.x;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        reinterpret_cast<int*>(ws + layout.counts)[segment] = total;
        if (p.counters) {
            atomicAdd(&p.counters[segment / p.kv_heads].votes, static_cast<unsigned long long>(runs));
            atomicAdd(&p.counters[segment / p.kv_heads].skipped, static_cast<unsigned long long>(runs - total));
        }
    }
}

}  // namespace skip

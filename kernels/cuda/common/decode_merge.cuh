// From the warps' sums to the output: within a block, then across the blocks that share a segment.
#pragma once
#include "decode_run.cuh"
#include "decode_shares.cuh"
#include "launch.h"
#include "mma.cuh"
#include "params.h"

namespace skip {

// Dimensions that the warps' sums are merged over at a time, and floats of shared memory that it takes.
template <int D>
constexpr int kMergeWidth = D < 128 ? D : 128;
template <int D>
constexpr int kMergeFloats = kDecodeWarps * kHeads * (kMergeWidth<D> + 4);

// Merges the warps' sums (each relative to its own maximum, in units of q.k): the block's part of the segment, written as the output where
// it is the only one.
template <typename TO, int D>
__device__ void write_part(const AttnParams& p, const Shares& shares, int segment, const Seq& seq, Sums<D>& sums, const float (&top)[2], float* buffer) {
    constexpr int kWide = kMergeWidth<D>;
    float(*s_o)[kHeads][kWide + 4] = reinterpret_cast<float(*)[kHeads][kWide + 4]>(buffer);
    __shared__ float s_m[kDecodeWarps][kHeads], s_l[kDecodeWarps][kHeads];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int group = p.heads / p.kv_heads, kv_head = segment % p.kv_heads;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sums.l[h] += __shfl_xor_sync(0xffffffffu, sums.l[h], d);
    if (lane < 4) {
        s_m[warp][2 * t] = top[0], s_m[warp][2 * t + 1] = top[1];
        s_l[warp][2 * t] = sums.l[0], s_l[warp][2 * t + 1] = sums.l[1];
    }
    const int first_block = shares.owner(shares.first[segment]);
    const bool alone = shares.owner(shares.first[segment + 1] - 1) == first_block;
    const int64_t slot = int64_t(segment + blockIdx.x) * kHeads, row = int64_t(seq.row) * p.heads + kv_head * group;
    float* sums_out = static_cast<float*>(p.workspace) + slot * D;
    float2* stats = reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + layout_of(p, D).stats) + slot;  // maximum, sum
#pragma unroll
    for (int wide = 0; wide < D; wide += kWide) {
        if (wide > 0) __syncthreads();
#pragma unroll
        for (int h = 0; h < kWide / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) s_o[warp][2 * t + (e & 1)][h * 64 + (lane >> 2) * 8 + 2 * w + (e >> 1)] = sums.o[wide / 64 + h][w][e];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < group * kWide; i += kDecodeThreads) {
            const int head = i / kWide, column = i % kWide, d = wide + column;
            float m = -INFINITY, l = 0.f, o = 0.f;
#pragma unroll
            for (int w = 0; w < kDecodeWarps; ++w) m = fmaxf(m, s_m[w][head]);
            const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll
            for (int w = 0; w < kDecodeWarps; ++w) {
                const float f = exp2_approx((s_m[w][head] - safe) * scale_log2);
                l += s_l[w][head] * f;
                o += s_o[w][head][column] * f;
            }
            if (alone) {
                static_cast<TO*>(p.out)[(row + head) * D + d] = TO(l > 0.f ? o / l : 0.f);
                if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + logf(l) : -INFINITY;
            } else {
                if (d == 0) stats[head] = make_float2(m, l);
                sums_out[head * D + d] = o;
            }
        }
    }
    __syncthreads();
}

// Adds up the parts of one segment, in the order of the blocks, and writes the output.
template <typename TO, int D>
__device__ void merge_parts(const AttnParams& p, int segment, int first_block, int parts, float* factor) {
    __shared__ float s_m[kHeads], s_l[kHeads];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = p.heads / p.kv_heads, kv_head = segment % p.kv_heads;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const int64_t slot = int64_t(segment + first_block) * kHeads, row = int64_t(p.seqs[segment / p.kv_heads].row) * p.heads + kv_head * group;
    const float* slots = static_cast<const float*>(p.workspace) + slot * D;
    const float2* stats = reinterpret_cast<const float2*>(static_cast<const char*>(p.workspace) + layout_of(p, D).stats) + slot;
    // Factors of the parts first, then sums whose loads do not wait for one another.
#pragma unroll 1
    for (int head = warp; head < group; head += kDecodeWarps) {
        float m = -INFINITY, l = 0.f;
#pragma unroll 1
        for (int x = lane; x < parts; x += 32) {
            const float2 stat = __ldcg(stats + x * kHeads + head);
            const float top = fmaxf(m, stat.x), safe = top == -INFINITY ? 0.f : top;
            l = l * exp2_approx((m - safe) * scale_log2) + stat.y * exp2_approx((stat.x - safe) * scale_log2);
            m = top;
            factor[x * kHeads + head] = stat.x;
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const float m2 = __shfl_xor_sync(0xffffffffu, m, d), l2 = __shfl_xor_sync(0xffffffffu, l, d);
            const float top = fmaxf(m, m2), safe = top == -INFINITY ? 0.f : top;
            // a + b is symmetric, so all lanes agree to the bit.
            const float a = l * exp2_approx((m - safe) * scale_log2), b = l2 * exp2_approx((m2 - safe) * scale_log2);
            l = a + b;
            m = top;
        }
        const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll 1
        for (int x = lane; x < parts; x += 32) factor[x * kHeads + head] = exp2_approx((factor[x * kHeads + head] - safe) * scale_log2);
        if (lane == 0) s_m[head] = m, s_l[head] = l;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * D / 4; i += kDecodeThreads) {
        const int head = i / (D / 4), d = i % (D / 4) * 4;
        const float4* part = reinterpret_cast<const float4*>(slots + head * D + d);
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 16
        for (int x = 0; x < parts; ++x) {
            const float4 v = __ldcg(part + x * (kHeads * D / 4));
            const float f = factor[x * kHeads + head];
            o.x += v.x * f, o.y += v.y * f, o.z += v.z * f, o.w += v.w * f;
        }
        const float m = s_m[head], l = s_l[head], inv = l > 0.f ? 1.f / l : 0.f;
        *reinterpret_cast<uint2*>(static_cast<TO*>(p.out) + (row + head) * D + d) = make_uint2(pack2<TO>(o.x * inv, o.y * inv), pack2<TO>(o.z * inv, o.w * inv));
        if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + logf(l) : -INFINITY;
    }
    __syncthreads();
}

// After all parts of the block's share are written: one fence, then the block signs in for the segments it shares with others, and
// merges those where it is the last.
template <typename TO, int D>
__device__ void arrive(const AttnParams& p, const Shares& shares, int from, int to, int which, float* factor) {
    __shared__ int s_last[2];
    // Only the first and the last segment of a contiguous share can be shared.
    const int ends[2] = {from, to};
    __threadfence();
    __syncthreads();
    if (threadIdx.x < 2) {
        const int segment = ends[threadIdx.x];
        int last = 0;
        if (shares.units(segment) > 0 && !(threadIdx.x == 1 && to == from)) {
            const int first_block = shares.owner(shares.first[segment]), parts = shares.owner(shares.first[segment + 1] - 1) - first_block + 1;
            unsigned* arrivals = reinterpret_cast<unsigned*>(static_cast<char*>(p.workspace) + layout_of(p, D).arrivals) + int64_t(which) * p.n_seqs * p.kv_heads;
            last = parts > 1 && atomicInc(arrivals + segment, parts - 1) == unsigned(parts - 1);
        }
        s_last[threadIdx.x] = last;
    }
    __syncthreads();
    if (s_last[0] | s_last[1]) __threadfence();
#pragma unroll 1
    for (int i = 0; i < 2; ++i)
        if (s_last[i]) {
            const int first_block = shares.owner(shares.first[ends[i]]);
            merge_parts<TO, D>(p, ends[i], first_block, shares.owner(shares.first[ends[i] + 1] - 1) - first_block + 1, factor);
        }
}

}  // namespace skip

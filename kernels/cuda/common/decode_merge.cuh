// From the warps' sums to the output: within a block, then across the blocks that share a segment.
#pragma once
#include "decode_run.cuh"
#include "decode_shares.cuh"
#include "launch.h"
#include "mma.cuh"
#include "params.h"

namespace skip {

// Dimensions that the warps' sums are merged over at a time, and floats of shared memory that it takes.
template <int D, int WARPS>
constexpr int kMergeWidth = WARPS > 4 ? 32 : D < 128 ? D : 128;
template <int D, int WARPS>
constexpr int kMergeFloats = WARPS * kHeads * (kMergeWidth<D, WARPS> + 4);

// Merges the warps' sums (each relative to its own maximum, in units of q.k): the block's part of the segment, written as the output where
// it is the only one. Every thread of the block.
template <typename TO, int D, int WARPS>
__device__ void write_part(const AttnParams& p, const Meeting& meeting, int seq_row, Sums<D>& sums, const float (&top)[2], float* buffer) {
    constexpr int kWide = kMergeWidth<D, WARPS>;
    float(*s_o)[kHeads][kWide + 4] = reinterpret_cast<float(*)[kHeads][kWide + 4]>(buffer);
    __shared__ float s_m[WARPS][kHeads], s_l[WARPS][kHeads];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int group = p.heads / p.kv_heads, kv_head = meeting.segment % p.kv_heads;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sums.l[h] += __shfl_xor_sync(0xffffffffu, sums.l[h], d);
    if (lane < 4) {
        s_m[warp][2 * t] = top[0], s_m[warp][2 * t + 1] = top[1];
        s_l[warp][2 * t] = sums.l[0], s_l[warp][2 * t + 1] = sums.l[1];
    }
    const int64_t slot = int64_t(meeting.segment + blockIdx.x) * kHeads, row = int64_t(seq_row) * p.heads + kv_head * group;
    float* sums_out = static_cast<float*>(p.workspace) + slot * D;
    float2* stats = reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + layout_of(p, D).stats) + slot;  // maximum, sum
#pragma unroll
    for (int wide = 0; wide < D; wide += kWide) {
        if (wide > 0) __syncthreads();
#pragma unroll
        for (int h = 0; h < D / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int column = h * 64 + (lane >> 2) * 8 + 2 * w + (e >> 1) - wide;
                    if (column >= 0 && column < kWide) s_o[warp][2 * t + (e & 1)][column] = sums.o[h][w][e];
                }
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < group * kWide; i += WARPS * 32) {
            const int head = i / kWide, column = i % kWide, d = wide + column;
            float m = -INFINITY, l = 0.f, o = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) m = fmaxf(m, s_m[w][head]);
            const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float f = exp2_approx((s_m[w][head] - safe) * scale_log2);
                l += s_l[w][head] * f;
                o += s_o[w][head][column] * f;
            }
            if (meeting.parts == 1) {
                static_cast<TO*>(p.out)[(row + head) * D + d] = TO(l > 0.f ? __fdividef(o, l) : 0.f);
                if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + __logf(l) : -INFINITY;
            } else {
                if (d == 0) stats[head] = make_float2(m, l);
                sums_out[head * D + d] = o;
            }
        }
    }
    __syncthreads();
}

// Adds up the parts of one segment, in the order of the blocks, and writes the output. All parts are fetched at once through shared memory
// (`room` bytes at `buffer`), 64 columns of all of them at least; the code is kept short, because it runs cold and once.
template <typename TO, int D, int WARPS>
__device__ __noinline__ void merge_parts(const AttnParams& p, const Meeting& meeting, int seq_row, char* buffer, int room) {
    const int group = p.heads / p.kv_heads, kv_head = meeting.segment % p.kv_heads, parts = meeting.parts;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const int64_t slot = int64_t(meeting.segment + meeting.first_block) * kHeads, row = int64_t(seq_row) * p.heads + kv_head * group;
    const char* slots = static_cast<const char*>(p.workspace) + slot * D * 4;
    const char* stats = static_cast<const char*>(p.workspace) + layout_of(p, D).stats + slot * 8;
    const float2* s_stats = reinterpret_cast<const float2*>(buffer);      // [parts][8]: maximum, sum
    const float4* s_parts = reinterpret_cast<const float4*>(buffer + parts * 64);  // [parts][quads]
    const uint32_t to = smem_addr(buffer);
#pragma unroll 1
    for (int i = threadIdx.x; i < parts * 4; i += WARPS * 32) cp_async16(to + i * 16, stats + i * 16);
    const int all = group * D / 4, quads = min(all, (room - parts * 64) / (parts * 256) * 16);
#pragma unroll 1
    for (int from = 0; from < all; from += quads) {
#pragma unroll 1
        for (int i = threadIdx.x; i < quads; i += WARPS * 32)
#pragma unroll 4
            for (int x = 0; x < parts; ++x) cp_async16(to + parts * 64 + (x * quads + i) * 16, slots + (int64_t(x) * (kHeads * D / 4) + from + i) * 16);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < min(quads, all - from); i += WARPS * 32) {
            const int head = (from + i) / (D / 4), d = (from + i) % (D / 4) * 4;
            float m = -INFINITY, l = 0.f;
            float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
            for (int x = 0; x < parts; ++x) m = fmaxf(m, s_stats[x * kHeads + head].x);
            const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll 4
            for (int x = 0; x < parts; ++x) {
                const float2 stat = s_stats[x * kHeads + head];
                const float4 part = s_parts[x * quads + i];
                const float f = exp2_approx((stat.x - safe) * scale_log2);
                l += stat.y * f;
                o.x += part.x * f, o.y += part.y * f, o.z += part.z * f, o.w += part.w * f;
            }
            const float inv = l > 0.f ? __fdividef(1.f, l) : 0.f;
            *reinterpret_cast<uint2*>(static_cast<TO*>(p.out) + (row + head) * D + d) = make_uint2(pack2<TO>(o.x * inv, o.y * inv), pack2<TO>(o.z * inv, o.w * inv));
            if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + __logf(l) : -INFINITY;
        }
        __syncthreads();
    }
}

// After all parts of the block's share are written: the block signs in for the segments it shares with others, which can only be the first
// and the last of a contiguous share, and merges those where it is the last, then calls done(segment). `which` picks a set of counters; the rings serve as buffer.
template <typename TO, int D, int WARPS, typename F>
__device__ __forceinline__ void arrive(const AttnParams& p, const Meeting (&ends)[2], int which, char* buffer, int room, F done) {
    __shared__ int s_last[2];
    if (threadIdx.x < 2) {
        const Meeting& meeting = ends[threadIdx.x];
        int last = 0;
        if (meeting.parts > 1 && !(threadIdx.x == 1 && ends[0].segment == ends[1].segment)) {
            unsigned* arrivals = reinterpret_cast<unsigned*>(static_cast<char*>(p.workspace) + layout_of(p, D).arrivals) + int64_t(which) * p.n_seqs * p.kv_heads;
            // write_part ended with a barrier, so the release covers the whole block's stores.
            last = arrive_at(arrivals + meeting.segment, meeting.parts);
        }
        s_last[threadIdx.x] = last;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2; ++i)
        if (s_last[i]) {
            merge_parts<TO, D, WARPS>(p, ends[i], p.seqs[ends[i].segment / p.kv_heads].row, buffer, room);
            done(ends[i].segment);
        }
}

}  // namespace skip

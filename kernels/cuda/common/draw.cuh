// Exact arithmetic of the draw. Weights are fixed-point integers, so a sum does not depend on its order: not on the number of blocks, nor on
// which of them comes first.
#pragma once
#include "ops.cuh"
#include "sampling.h"

namespace skip {

using u64 = unsigned long long;

constexpr int kDrawWarps = 8;
constexpr int kDrawThreads = kDrawWarps * 32;
constexpr int kIdBits = 20;  // ids are below 2^20
constexpr uint32_t kIdMask = (1u << kIdBits) - 1;

// As the sampler sees a logit: never NaN, never +inf.
__device__ __forceinline__ float clean(float x) { return x != x ? -INFINITY : fminf(x, 3.402823466e38f); }

// Keys order tokens: a larger logit first, then a lower id. 0 is below every key.
__device__ __forceinline__ u64 make_key(float x, uint32_t id) {
    const uint32_t bits = __float_as_uint(x == 0.f ? 0.f : x);  // -0 equals 0
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return u64(ordered) << kIdBits | (kIdMask - id);
}
__device__ __forceinline__ uint32_t key_id(u64 key) { return kIdMask - (uint32_t(key) & kIdMask); }
__device__ __forceinline__ float key_logit(u64 key) {
    const uint32_t ordered = uint32_t(key >> kIdBits);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// The weight of a token relative to the most likely one's, which is 1, in units of 2^-40; a vocabulary's sum stays below 2^60.
constexpr float kUnit = 1099511627776.f;
__device__ __forceinline__ float weight(float x, float most, float temperature) {
    const float d = x - most;
    return d == -INFINITY ? 0.f : expf(d / temperature);
}
__device__ __forceinline__ u64 fixed(float weight) { return u64(weight * kUnit); }

// How a row is drawn, with everything that means "no limit" resolved.
struct Rule {
    float most, temperature, floor;
    u64 top_k;       // vocab where unlimited
    double top_p;
    bool draws, limited_k, limited_p;
    __device__ __forceinline__ Rule(const SampleParams& p, float most, int vocab)
        : most(most),
          temperature(p.temperature),
          floor(p.min_p > 0.f ? fminf(p.min_p, 1.f) : 0.f),
          top_k(p.top_k == 0 ? vocab : min(u64(p.top_k), u64(vocab))),
          top_p(p.top_p),
          draws(p.temperature > 0.f),
          limited_k(top_k < u64(vocab)),
          limited_p(p.top_p < 1.f) {}
    __device__ __forceinline__ bool sorted() const { return draws && (limited_k || limited_p); }
    __device__ __forceinline__ float weigh(float x) const { return weight(x, most, temperature); }
    // Weight after min-p.
    __device__ __forceinline__ u64 kept(float x) const {
        const float w = weigh(x);
        return w >= floor ? fixed(w) : 0;
    }
    // Cumulated weight that top-p asks of `whole`.
    __device__ __forceinline__ u64 goal(u64 whole) const {
        const double goal = ceil(top_p * double(whole));
        return goal < 1. ? 1 : min(u64(goal), whole);
    }
};

// A uniform number in [0, 1) of (seed, position): SplitMix64's finaliser over a Weyl sequence started at a hash of the seed.
__device__ __forceinline__ double uniform(u64 seed, u64 position) {
    constexpr u64 kWeyl = 0x9e3779b97f4a7c15ull;
    const auto mix = [](u64 z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    };
    return double(mix(mix(seed + kWeyl) + kWeyl * (position + 1)) >> 11) / 9007199254740992.;
}
// The weight behind which the drawn token lies: it is the first whose cumulated weight exceeds this.
__device__ __forceinline__ u64 draw_target(const SampleParams& p, u64 total) {
    const u64 target = u64(uniform(p.seed, p.position) * double(total));
    return target < total ? target : total - 1;
}

__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
__device__ __forceinline__ u64 warp_sum(u64 x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
// Over the block, in every thread.
__device__ __forceinline__ u64 block_max(u64 x) {
    __shared__ u64 scratch[kDrawWarps];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < kDrawWarps; ++i) x = max(x, scratch[i]);
    return x;
}
__device__ __forceinline__ u64 block_total(u64 x) {
    __shared__ u64 scratch[kDrawWarps];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < kDrawWarps; ++i) x += scratch[i];
    return x;
}

// A block's share of the row: [begin, end).
struct Share {
    int begin, end;
    __device__ __forceinline__ Share(int vocab, int part, int parts)
        : begin(int(int64_t(vocab) * part / parts)), end(int(int64_t(vocab) * (part + 1) / parts)) {}
};

// Visits logits [begin, end) by the block, four loads in flight a thread.
template <typename Visit>
__device__ __forceinline__ void each_logit(const float* logits, int begin, int end, const Visit& visit) {
    int i = begin + threadIdx.x;
    for (; i + 3 * kDrawThreads < end; i += 4 * kDrawThreads) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = logits[i + j * kDrawThreads];
#pragma unroll
        for (int j = 0; j < 4; ++j) visit(clean(x[j]), i + j * kDrawThreads);
    }
    for (; i < end; i += kDrawThreads) visit(clean(logits[i]), i);
}

}  // namespace skip

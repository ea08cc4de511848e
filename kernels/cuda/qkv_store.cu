// From packed [q | k | v] rows to attention's inputs: bias, per-head RMS norms and rotation; k and v go into the pages.
//
// `rope_angles`: grid (rows), 64 threads, once a step for each rotation: out[row][i] = factor * (cos, sin)(position * inv_freq[i]). Layers
// share it, which is why qkv_store takes the angles and not the frequencies. Whole turns are taken off in float64,
// so the error is float32's at any position.
//
// `qkv_store_<C>`: grid (rows, ceil((heads + 2 * kv_heads) / 4)), 128 threads, a warp a head; head_dim 64, 128 or 256. The packed rows are
// float32, so that what attention sees is rounded once, to the cache's type C. q goes to rows [heads][head_dim] of its own, k and v to the
// pools [page][kv_head][128][head_dim] at slot[r] = page * 128 + offset; slot -1 is padding and stores nothing there. tail[r] = t > 0 zeroes V of the row's page from offset t on: what an earlier user of the page left may be NaN, and zero
// times NaN is NaN.
#include "common/ops.cuh"
#include "common/params.h"

namespace skip {

constexpr int kAngleThreads = 64;
constexpr int kStoreWarps = 4;

__device__ __forceinline__ void rope_angles(const int* position, const float* inv_freq, float factor, int half, float2* out) {
    pdl_launch();
    pdl_wait();
    const double at = position[blockIdx.x];
    for (int i = threadIdx.x; i < half; i += kAngleThreads) {
        const double turns = at * double(inv_freq[i]) * 0.15915494309189535;  // 1 / (2 pi)
        float s, c;
        sincospif(2.f * float(turns - rint(turns)), &s, &c);
        out[int64_t(blockIdx.x) * half + i] = make_float2(c * factor, s * factor);
    }
}

// N contiguous elements as one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T x[N];
};

struct StoreArgs {
    const float *bias, *q_norm, *k_norm;
    float norm_eps;
    const float2* cos_sin;
    const int *slot, *tail;
    int heads, kv_heads;
};

// A lane holds N pairs (i, i + d/2), contiguous in i; d = 64 * N.
template <typename C, int N>
__device__ __forceinline__ void store_head(const float* qkv, const StoreArgs& a, C* q, C* k_pool, C* v_pool) {
    constexpr int kDim = 64 * N, kHalf = 32 * N;
    const int lane = threadIdx.x % 32, head = blockIdx.y * kStoreWarps + threadIdx.x / 32;
    const int64_t row = blockIdx.x;
    if (head >= a.heads + 2 * a.kv_heads) return;
    const bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
    const int slot = is_q ? 0 : a.slot[row];
    if (slot < 0) return;

    const float* at = qkv + (row * (a.heads + 2 * a.kv_heads) + head) * kDim + lane * N;
    float low[N], high[N];
    {
        const auto l = *reinterpret_cast<const Pack<float, N>*>(at), h = *reinterpret_cast<const Pack<float, N>*>(at + kHalf);
#pragma unroll
        for (int i = 0; i < N; ++i) low[i] = l.x[i], high[i] = h.x[i];
    }
    if (a.bias) {
        const float* bias = a.bias + head * kDim + lane * N;
#pragma unroll
        for (int i = 0; i < N; ++i) low[i] += bias[i], high[i] += bias[i + kHalf];
    }
    if (!is_v) {
        if (a.q_norm) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < N; ++i) sum += low[i] * low[i] + high[i] * high[i];
            const float factor = 1.f / sqrtf(warp_sum(sum) / float(kDim) + a.norm_eps);
            const float* w = (is_q ? a.q_norm : a.k_norm) + lane * N;
#pragma unroll
            for (int i = 0; i < N; ++i) low[i] *= factor * w[i], high[i] *= factor * w[i + kHalf];
        }
        const float2* angle = a.cos_sin + row * kHalf + lane * N;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float2 r = angle[i];
            const float l = low[i], h = high[i];
            low[i] = l * r.x - h * r.y, high[i] = h * r.x + l * r.y;
        }
    }

    Pack<C, N> l, h;
#pragma unroll
    for (int i = 0; i < N; ++i) l.x[i] = from_float<C>(low[i]), h.x[i] = from_float<C>(high[i]);
    C* to = q + (row * a.heads + head) * kDim + lane * N;
    if (!is_q) {
        const int kv_head = head - a.heads - (is_v ? a.kv_heads : 0);
        C* page = (is_v ? v_pool : k_pool) + (int64_t(slot / kPage) * a.kv_heads + kv_head) * kPage * kDim;
        to = page + (slot % kPage) * kDim + lane * N;
        const int tail = is_v ? a.tail[row] : 0;
        if (tail > 0) {
            for (int c = tail * kDim + lane * 8; c < kPage * kDim; c += 32 * 8) *reinterpret_cast<uint4*>(page + c) = make_uint4(0, 0, 0, 0);
        }
    }
    *reinterpret_cast<Pack<C, N>*>(to) = l;
    *reinterpret_cast<Pack<C, N>*>(to + kHalf) = h;
}

template <typename C>
__device__ __forceinline__ void qkv_store(const float* qkv, const StoreArgs& a, int head_dim, C* q, C* k_pool, C* v_pool) {
    pdl_launch();
    pdl_wait();
    switch (head_dim) {
        case 64: return store_head<C, 1>(qkv, a, q, k_pool, v_pool);
        case 128: return store_head<C, 2>(qkv, a, q, k_pool, v_pool);
        case 256: return store_head<C, 4>(qkv, a, q, k_pool, v_pool);
    }
}

}  // namespace skip

extern "C" __global__ void __launch_bounds__(skip::kAngleThreads) rope_angles(const int* position, const float* inv_freq, float factor, int half, float2* out) {
    skip::rope_angles(position, inv_freq, factor, half, out);
}

#define STORE(C_NAME, C)                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(skip::kStoreWarps * 32) qkv_store_##C_NAME(                                                        \
        const float* qkv, const float* bias, const float* q_norm, const float* k_norm, float norm_eps, const float2* cos_sin, const int* slot,    \
        const int* tail, int heads, int kv_heads, int head_dim, C* q, C* k_pool, C* v_pool) {                                                     \
        skip::qkv_store(qkv, skip::StoreArgs{bias, q_norm, k_norm, norm_eps, cos_sin, slot, tail, heads, kv_heads}, head_dim, q, k_pool, v_pool); \
    }
STORE(bf16, __nv_bfloat16)
STORE(fp16, __half)

// RMS norms of the float32 residual stream, with or without the addition before them, of what may be normed itself: out = x / sqrt(mean(x^2) + eps) * w.
//
// Grid (rows), 256 threads, `cols` a multiple of 4. Rows up to 8,192 wide stay in registers between the two passes.
#include "common/ops.cuh"

namespace skip {

constexpr int kNormThreads = 256;
constexpr int kHeld = 8;  // vectors of 4 a thread

template <typename T>
__device__ __forceinline__ float4 load4(const T* from) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    const T* h = reinterpret_cast<const T*>(&words);
    return make_float4(to_float(h[0]), to_float(h[1]), to_float(h[2]), to_float(h[3]));
}

template <typename T, bool ADD>
__device__ __forceinline__ void norm(float* x, const T* delta, const float* w, float eps, int cols, T* out) {
    __shared__ float scratch[kNormThreads / 32];
    pdl_launch();
    pdl_wait();
    const int64_t at = int64_t(blockIdx.x) * cols;
    float4 held[kHeld];
    float sum = 0.f;
    const auto take = [&](int c) {
        float4 v = *reinterpret_cast<const float4*>(x + at + c);
        if constexpr (ADD) {
            const float4 d = load4(delta + at + c);
            v = make_float4(v.x + d.x, v.y + d.y, v.z + d.z, v.w + d.w);
            *reinterpret_cast<float4*>(x + at + c) = v;
        }
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        return v;
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * kNormThreads + threadIdx.x) * 4;
        if (c < cols) held[i] = take(c);
    }
    for (int c = (kHeld * kNormThreads + threadIdx.x) * 4; c < cols; c += kNormThreads * 4) take(c);

    const float factor = 1.f / sqrtf(block_sum(sum, scratch) / float(cols) + eps);
    const auto give = [&](int c, float4 v) {
        const float4 g = *reinterpret_cast<const float4*>(w + c);
        *reinterpret_cast<uint2*>(out + at + c) = make_uint2(round2<T>(v.x * factor * g.x, v.y * factor * g.y), round2<T>(v.z * factor * g.z, v.w * factor * g.w));
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * kNormThreads + threadIdx.x) * 4;
        if (c < cols) give(c, held[i]);
    }
    for (int c = (kHeld * kNormThreads + threadIdx.x) * 4; c < cols; c += kNormThreads * 4) give(c, *reinterpret_cast<const float4*>(x + at + c));
}

// x += delta / rms(delta) * post, then the norm of x.
template <typename T>
__device__ __forceinline__ void add_post_norm(float* x, const T* delta, const float* post, const float* w, float eps, int cols, T* out) {
    __shared__ float scratch[2][kNormThreads / 32];
    pdl_launch();
    pdl_wait();
    const int64_t at = int64_t(blockIdx.x) * cols;
    float4 held[kHeld];
    float sum = 0.f;
    const auto square = [](float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * kNormThreads + threadIdx.x) * 4;
        if (c < cols) sum += square(held[i] = load4(delta + at + c));
    }
    for (int c = (kHeld * kNormThreads + threadIdx.x) * 4; c < cols; c += kNormThreads * 4) sum += square(load4(delta + at + c));

    const float added = 1.f / sqrtf(block_sum(sum, scratch[0]) / float(cols) + eps);
    sum = 0.f;
    const auto add = [&](int c, float4 d) {
        float4 v = *reinterpret_cast<const float4*>(x + at + c);
        const float4 g = *reinterpret_cast<const float4*>(post + c);
        v = make_float4(v.x + d.x * added * g.x, v.y + d.y * added * g.y, v.z + d.z * added * g.z, v.w + d.w * added * g.w);
        *reinterpret_cast<float4*>(x + at + c) = v;
        sum += square(v);
        return v;
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * kNormThreads + threadIdx.x) * 4;
        if (c < cols) held[i] = add(c, held[i]);
    }
    for (int c = (kHeld * kNormThreads + threadIdx.x) * 4; c < cols; c += kNormThreads * 4) add(c, load4(delta + at + c));

    const float factor = 1.f / sqrtf(block_sum(sum, scratch[1]) / float(cols) + eps);
    const auto give = [&](int c, float4 v) {
        const float4 g = *reinterpret_cast<const float4*>(w + c);
        *reinterpret_cast<uint2*>(out + at + c) = make_uint2(round2<T>(v.x * factor * g.x, v.y * factor * g.y), round2<T>(v.z * factor * g.z, v.w * factor * g.w));
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * kNormThreads + threadIdx.x) * 4;
        if (c < cols) give(c, held[i]);
    }
    for (int c = (kHeld * kNormThreads + threadIdx.x) * 4; c < cols; c += kNormThreads * 4) give(c, *reinterpret_cast<const float4*>(x + at + c));
}

}  // namespace skip

#define NORM(NAME, T)                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(skip::kNormThreads) rms_norm_##NAME(const float* x, const float* w, float eps, int cols, T* out) { \
        skip::norm<T, false>(const_cast<float*>(x), nullptr, w, eps, cols, out);                                                                  \
    }                                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(skip::kNormThreads)                                                                              \
        add_rms_norm_##NAME(float* x, const T* delta, const float* w, float eps, int cols, T* out) {                                              \
        skip::norm<T, true>(x, delta, w, eps, cols, out);                                                                                         \
    }                                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(skip::kNormThreads)                                                                              \
        add_post_rms_norm_##NAME(float* x, const T* delta, const float* post, const float* w, float eps, int cols, T* out) {                      \
        skip::add_post_norm<T>(x, delta, post, w, eps, cols, out);                                                                                \
    }
NORM(bf16, __nv_bfloat16)
NORM(fp16, __half)

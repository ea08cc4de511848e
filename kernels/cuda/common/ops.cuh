// What the operators between attention and the matrix products share: element types, 16-byte vectors, reductions, dependent launch.
//
// Activations are T (bf16 or fp16), the residual stream is float32, arithmetic is float32. Every operator calls `pdl_launch` and
// `pdl_wait`: a launch with the programmatic-serialization attribute may start while its predecessor runs and waits here; one without
// it passes through. A kernel that left the wait out would let its successor overtake the kernel before it, so none does.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace skip {

// Lets the next launch of the stream start as soon as every block has come this far. No memory is promised by it.
__device__ __forceinline__ void pdl_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Returns when the kernels before are complete and what they wrote is visible.
__device__ __forceinline__ void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

// Rounds to nearest even; binary16 saturates at 65504 and keeps NaN.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    const __half most = __ushort_as_half(0x7bff);
    return __hmax_nan(__hmin_nan(__float2half_rn(x), most), __hneg(most));
}

template <typename T>
__device__ __forceinline__ uint32_t round2(float lo, float hi) {
    union {
        T half[2];
        uint32_t word;
    } both;
    both.half[0] = from_float<T>(lo);
    both.half[1] = from_float<T>(hi);
    return both.word;
}

// Eight elements as one 16-byte access.
template <typename T>
__device__ __forceinline__ void load8(const T* from, float (&x)[8]) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const T* halves = reinterpret_cast<const T*>(&words);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(halves[i]);
}
template <>
__device__ __forceinline__ void load8<float>(const float* from, float (&x)[8]) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
template <typename T>
__device__ __forceinline__ void store8(T* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(round2<T>(x[0], x[1]), round2<T>(x[2], x[3]), round2<T>(x[4], x[5]), round2<T>(x[6], x[7]));
}
template <>
__device__ __forceinline__ void store8<float>(float* to, const float (&x)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
// The sum over a block of WARPS warps, in every thread. `scratch` is not to be touched again before the next barrier.
template <int WARPS>
__device__ __forceinline__ float block_sum(float x, float (&scratch)[WARPS]) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += scratch[i];
    return sum;
}

// The gate's activation: x * sigmoid(x), or GELU in its tanh form, 0.5 * (1 + tanh u) = sigmoid(2u).
enum class Act { silu, gelu_tanh };
template <Act ACT>
__device__ __forceinline__ float activate(float x) {
    const float u = ACT == Act::silu ? x : 1.595769f * (x + 0.044715f * x * x * x);  // 2 * sqrt(2 / pi)
    return x / (1.f + expf(-u));
}

}  // namespace skip

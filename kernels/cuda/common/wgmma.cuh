// Thin wrappers over Hopper's own instructions (sm_90a): wgmma, mbarrier, named barriers, register hand-over.
#pragma once
#include <cstdint>

#include "mma.cuh"

namespace skip {

__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar), "r"(parity)
        : "memory");
}
// What ordinary and cp.async stores wrote becomes visible to wgmma; by each writer, before it signals.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int ID, int THREADS>
__device__ __forceinline__ void named_barrier() { asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory"); }
// Whether the predicate held in every one of the threads.
template <int ID, int THREADS>
__device__ __forceinline__ bool named_barrier_all(bool p) {
    uint32_t all;
    asm volatile("{\n.reg .pred in, out;\nsetp.ne.u32 in, %1, 0;\nbar.red.and.pred out, %2, %3, in;\nselp.u32 %0, 1, 0, out;\n}" : "=r"(all) : "r"(uint32_t(p)), "n"(ID), "n"(THREADS) : "memory");
    return all != 0;
}

template <int N>
__device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
__device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Products end when they are waited for, not where their statement stands: uses of the registers may not move across this.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// A matrix in shared memory in rows of 128 bytes, 128-byte swizzle, groups of eight rows 1024 bytes apart. `next` is the distance in bytes of
// the next 64 columns where rows are the summed dimension (V), else without meaning.
__device__ __forceinline__ uint64_t matrix_at(uint32_t addr, uint32_t next) {
    return uint64_t((addr & 0x3ffff) >> 4) | uint64_t(next >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

#define SKIP_F8(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])
#define SKIP_F32(x, i) SKIP_F8(x, i), SKIP_F8(x, i + 8), SKIP_F8(x, i + 16), SKIP_F8(x, i + 24)
#define SKIP_R32                                                                                                                           \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SKIP_R64                                                                                                                           \
    SKIP_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// scores[64x128] = (first ? 0 : scores) + a[64x16] * b[128x16]^T, both in shared memory, rows over the summed dimension.
template <typename T>
__device__ __forceinline__ void wgmma_scores(float (&c)[64], uint64_t a, uint64_t b, bool first);
// out[64x2N] += a[64x16] * b[16x2N], a in registers as mma's A fragment, b in shared memory, rows along the summed dimension.
template <typename T>
__device__ __forceinline__ void wgmma_values(float (&c)[32], const uint32_t* a, uint64_t b);
template <typename T>
__device__ __forceinline__ void wgmma_values(float (&c)[64], const uint32_t* a, uint64_t b);

#define SKIP_WGMMA(T, NAME)                                                                                                                \
    template <>                                                                                                                            \
    __device__ __forceinline__ void wgmma_scores<T>(float (&c)[64], uint64_t a, uint64_t b, bool first) {                                  \
        asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME            \
                     " {" SKIP_R64 "}, %64, %65, add, 1, 1, 0, 0;\n}"                                                                      \
                     : SKIP_F32(c, 0), SKIP_F32(c, 32)                                                                                     \
                     : "l"(a), "l"(b), "r"(uint32_t(first)));                                                                              \
    }                                                                                                                                      \
    template <>                                                                                                                            \
    __device__ __forceinline__ void wgmma_values<T>(float (&c)[32], const uint32_t* a, uint64_t b) {                                       \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" SKIP_R32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"    \
                     : SKIP_F32(c, 0)                                                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                \
    }                                                                                                                                      \
    template <>                                                                                                                            \
    __device__ __forceinline__ void wgmma_values<T>(float (&c)[64], const uint32_t* a, uint64_t b) {                                       \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" SKIP_R64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"   \
                     : SKIP_F32(c, 0), SKIP_F32(c, 32)                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                \
    }
SKIP_WGMMA(__nv_bfloat16, "bf16")
SKIP_WGMMA(__half, "f16")

}  // namespace skip

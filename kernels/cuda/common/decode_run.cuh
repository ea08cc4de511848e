// Decode's pieces on one run of keys: staging K and V in shared memory, scores, and weighted sums of values.
#pragma once
#include "mma.cuh"
#include "params.h"

namespace skip {

__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ uint4 load_shared(uint32_t a) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(a));
    return x;
}

// Where 16-byte chunk `chunk` of key `key` lies in a staged run: K is read by 8 keys x 4 chunks, V by 4 key pairs x 8 chunks.
template <int D>
__device__ __forceinline__ uint32_t k_offset(int key, int chunk) { return key * (D * 2) + ((chunk ^ ((key & 1) << 2)) << 4); }
template <int D>
__device__ __forceinline__ uint32_t v_offset(int key, int chunk) { return key * (D * 2) + ((chunk ^ (((key >> 1) & 3) << 1)) << 4); }

// Starts the copy of KEYS keys (contiguous in their page); keys from `live` on become zero.
template <int D, int KEYS, bool V>
__device__ __forceinline__ void stage_run(uint32_t dst, const char* src, int lane, int live) {
    constexpr int kChunks = D / 8;
#pragma unroll
    for (int i = 0; i < KEYS * kChunks / 32; ++i) {
        const int at = i * 32 + lane, key = at / kChunks, chunk = at % kChunks;
        cp_async16_zfill(dst + (V ? v_offset<D>(key, chunk) : k_offset<D>(key, chunk)), src + at * 16, key < live ? 16 : 0);
    }
}

// The lane's part of a stage of K: keys lane / 4 and + 8 of M groups of 16, 8 dimensions of every 32.
template <int D, int M>
struct KRun {
    uint4 x[M][2][D / 32];
    __device__ __forceinline__ void read(uint32_t run, int lane) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int c = 0; c < D / 32; ++c) x[m][i][c] = load_shared(run + k_offset<D>(m * 16 + i * 8 + (lane >> 2), c * 4 + (lane & 3)));
    }
};

// Queries of the group, column = head; columns from `group` on are zero.
template <int D>
__device__ __forceinline__ void load_q(uint4 (&q)[D / 32], const char* base, int group, int lane) {
#pragma unroll
    for (int c = 0; c < D / 32; ++c)
        q[c] = (lane >> 2) < group ? *reinterpret_cast<const uint4*>(base + ((lane >> 2) * D + c * 32 + (lane & 3) * 8) * 2) : make_uint4(0, 0, 0, 0);
}

// s[m][0..1]: key 16 m + lane / 4, heads 2t and 2t + 1; s[m][2..3]: key + 8. Keys from `live` on are -inf.
template <typename T, int D, int M>
__device__ __forceinline__ void scores(float (&s)[M][4], const KRun<D, M>& k, const uint4 (&q)[D / 32], int lane, int live) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][e] = 0.f;
#pragma unroll
        for (int c = 0; c < D / 32; ++c) {
            const uint4 lo = k.x[m][0][c], hi = k.x[m][1][c];
            const uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
            mma<T>(s[m], a0, q[c].x, q[c].y);
            mma<T>(s[m], a1, q[c].z, q[c].w);
        }
        if (live < 16 * M) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (m * 16 + (e >> 1) * 8 + (lane >> 2) >= live) s[m][e] = -INFINITY;
        }
    }
}

// Maximum over the stage's keys of the lane's two heads.
template <int M>
__device__ __forceinline__ void run_maximum(float (&top)[2], const float (&s)[M][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float x = fmaxf(s[0][h], s[0][h + 2]);
#pragma unroll
        for (int m = 1; m < M; ++m) x = fmaxf(x, fmaxf(s[m][h], s[m][h + 2]));
#pragma unroll
        for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
        top[h] = x;
    }
}

// Sums of one warp: o[h][w]: dimensions 64 h + 8 (lane / 4) + 2w (elements 0, 1: heads 2t, 2t + 1) and + 1 (elements 2, 3).
template <int D>
struct Sums {
    float o[D / 64][4][4];
    float l[2];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int h = 0; h < D / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[h][w][e] = 0.f;
        l[0] = l[1] = 0.f;
    }
    __device__ __forceinline__ void scale(const float (&alpha)[2]) {
#pragma unroll
        for (int h = 0; h < D / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[h][w][e] *= alpha[e & 1];
        l[0] *= alpha[0];
        l[1] *= alpha[1];
    }
    // Adds weights x values of the stage; p as `scores` lays it out.
    template <typename T, int M>
    __device__ __forceinline__ void add(const float (&p)[M][4], uint32_t run, int lane) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            l[0] += p[m][0] + p[m][2];
            l[1] += p[m][1] + p[m][3];
            const uint32_t b0 = transpose8x8(pack2<T>(p[m][0], p[m][1])), b1 = transpose8x8(pack2<T>(p[m][2], p[m][3]));
#pragma unroll
            for (int h = 0; h < D / 64; ++h) {
                uint4 v[4];  // keys 2t, 2t + 1, 2t + 8, 2t + 9; 8 dimensions
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] = load_shared(run + v_offset<D>(m * 16 + (lane & 3) * 2 + (i & 1) + (i >> 1) * 8, h * 8 + (lane >> 2)));
                const uint32_t* k[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) k[i] = reinterpret_cast<const uint32_t*>(&v[i]);
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const uint32_t a[4] = {__byte_perm(k[0][w], k[1][w], 0x5410), __byte_perm(k[0][w], k[1][w], 0x7632),
                                           __byte_perm(k[2][w], k[3][w], 0x5410), __byte_perm(k[2][w], k[3][w], 0x7632)};
                    mma<T>(o[h][w], a, b0, b1);
                }
            }
        }
    }
};

}  // namespace skip

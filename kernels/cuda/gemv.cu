// Matrix products of 1, 2, 4 or 8 rows: out[b][n] = sum over k of x[b][k] * w[n][k], as fast as the weights can be read.
//
// The weights are the A operand of mma.m16n8k16 exactly as 16-byte loads bring them. A lane's eight values of row g are, as registers a0 to a3,
// k-pairs 0 and 2 of MMA row g and pairs 1 and 3 of MMA row g + 8; so columns 0 to 3 of B hold pairs 0 and 2 of four rows of x, columns 4 to
// 7 pairs 1 and 3 of the same, and c[g][b] + c[g + 8][b + 4] is the sum. One MMA takes 8 rows of w by 32 of k; eight rows of x take two.
//
// 1, 2, 4 or 8 warps share the k of a tile of 8 rows of w, as many as the grid has warps for, and add up through shared memory in order; with
// fewer warps than tiles each warp strides over whole tiles. Weights come in batches of 4 loads a lane, through a ring of registers that does
// not drain between tiles. They do not depend on the kernel before: the ring is filled before `pdl_wait`, and a chain launched with
// programmatic serialization keeps memory busy across kernel boundaries.
//
// k is a multiple of 32, n of 8. Any grid works; best is min(n / 8, 2 * SMs) blocks of 256 threads. Dynamic shared memory holds x:
// B * (2 * k rounded up to a multiple of 256, + 64) bytes.
//
//   gemv_<T>_<W>_b<B>            (const T* x, const W* w, int k, int n, T* out)
//   gemv_<T>_<W>_f32_b<B>        (const T* x, const W* w, int k, int n, float* out)
//   gemv_residual_<T>_<W>_b<B>   (const T* x, const W* w, int k, int n, float* residual)                out is added to residual
//   norm_gemv_<T>_<W>_b<B>       (const float* x, const float* norm, float eps, const W* w, int k, int n, T* out)
//   norm_gemv_<T>_<W>_f32_b<B>   (const float* x, const float* norm, float eps, const W* w, int k, int n, float* out)
//   norm_gemv_gated_<T>_<W>_<silu|gelu_tanh>_b<B>  (... as norm_gemv ...)   w is [gate | up], 2 n rows; out = act(gate) * up
//
// Measured on an H200 in graphs, weights cold: 4.0 TB/s for 272 MB, 3.0 for 17 MB, 1.9 microseconds for 2 MB. Every block of a norm form
// repeats the norms, which at 8 rows costs more than the launch saved: a decode step's products of Qwen2.5-0.5B took 421 microseconds with
// norm forms and 490 without at one row, 632 and 570 at eight.
//
// The norm forms take rows of the float32 residual and norm them in every block as rms_norm_<T> does, rounded to T.
#include "common/mma.cuh"
#include "common/ops.cuh"

namespace skip {

constexpr int kGemvWarps = 8, kGemvThreads = 32 * kGemvWarps;
constexpr int kTile = 8;                      // rows of w
constexpr int kChunk = 32;                    // k of one 16-byte load a lane
constexpr int kBatch = 4;                     // loads waited for together
constexpr int kStep = 64, kBatchStep = kBatch * kStep;  // bytes

// Weights are read once: they need no place in L1.
__device__ __forceinline__ void load_weights(uint32_t (&v)[4], const char* p) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
// A plain load, never ld.nc: x is written by the kernel before, while this one may already run.
__device__ __forceinline__ uint4 load_x(const char* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ uint32_t dynamic_shared() {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// x in shared memory: of every eight elements the pairs in the order 0, 2, 1, 3, so that a lane's two are one 8-byte load. Rows are padded with
// zeros to whole batches, and lie 64 bytes off a multiple of 128 from each other, which keeps the loads of a warp off each other's banks.
__device__ __forceinline__ int x_stride(int row_bytes) { return (row_bytes + kBatchStep - 1) / kBatchStep * kBatchStep + 64; }
// 8 / B warps stage a row.
template <int B>
struct Stagers {
    static constexpr int kWarps = kGemvWarps / B, kThreads = 32 * kWarps;
    int row = int(threadIdx.x) / kThreads, thread = int(threadIdx.x) % kThreads;
};

template <int B>
__device__ __forceinline__ void stage_rows(const char* x, int row_bytes, char* to) {
    constexpr int kAtOnce = 8;
    const Stagers<B> me;
    const int end = x_stride(row_bytes) - 64;
    const char* from = x + int64_t(me.row) * row_bytes;
    to += me.row * x_stride(row_bytes);
    for (int start = me.thread * 16; start < end; start += kAtOnce * me.kThreads * 16) {
        uint4 v[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int c = start + i * me.kThreads * 16;
            v[i] = make_uint4(0, 0, 0, 0);
            if (c < row_bytes) v[i] = load_x(from + c);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int c = start + i * me.kThreads * 16;
            if (c < end) *reinterpret_cast<uint4*>(to + c) = make_uint4(v[i].x, v[i].z, v[i].y, v[i].w);
        }
    }
    __syncthreads();
}

// The same after an RMS norm of float32 rows. What a thread holds it reads once.
template <typename T, int B>
__device__ __forceinline__ void norm_rows(const float* x, const float* norm, float eps, int k, char* to) {
    constexpr int kHeld = 4;
    __shared__ float sums[kGemvWarps];
    const Stagers<B> me;
    const int end = (x_stride(k * 2) - 64) / 2;
    const float* from = x + int64_t(me.row) * k;
    to += me.row * x_stride(k * 2);
    float4 held[kHeld];
    float sum = 0.f;
    const auto take = [&](int c) { return *reinterpret_cast<const float4*>(from + c); };
    const auto add = [&](float4 v) { sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * me.kThreads + me.thread) * 4;
        held[i] = c < k ? take(c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) add(held[i]);
#pragma unroll 4
    for (int c = (kHeld * me.kThreads + me.thread) * 4; c < k; c += me.kThreads * 4) add(take(c));
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < me.kWarps; ++i) sum += sums[me.row * me.kWarps + i];
    const float factor = 1.f / sqrtf(sum / float(k) + eps);
    const auto give = [&](int c, float4 v) {
        const float4 g = c < k ? *reinterpret_cast<const float4*>(norm + c) : make_float4(0.f, 0.f, 0.f, 0.f);
        uint32_t* at = reinterpret_cast<uint32_t*>(to + c / 8 * 16) + c / 4 % 2;
        at[0] = round2<T>(v.x * factor * g.x, v.y * factor * g.y), at[2] = round2<T>(v.z * factor * g.z, v.w * factor * g.w);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int c = (i * me.kThreads + me.thread) * 4;
        if (c < end) give(c, held[i]);
    }
#pragma unroll 4
    for (int c = (kHeld * me.kThreads + me.thread) * 4; c < end; c += me.kThreads * 4) give(c, c < k ? take(c) : make_float4(0.f, 0.f, 0.f, 0.f));
    __syncthreads();
}

// What a form does with the sum of a row of w (of gate and of up) and a row of x.
template <typename T>
struct StoreRounded {
    static constexpr int kParts = 1;
    T* out;
    __device__ __forceinline__ void operator()(int64_t at, const float (&sum)[1]) const { out[at] = from_float<T>(sum[0]); }
};
struct StoreFloat {
    static constexpr int kParts = 1;
    float* out;
    __device__ __forceinline__ void operator()(int64_t at, const float (&sum)[1]) const { out[at] = sum[0]; }
};
struct AddFloat {
    static constexpr int kParts = 1;
    float* out;
    __device__ __forceinline__ void operator()(int64_t at, const float (&sum)[1]) const { out[at] += sum[0]; }
};
template <typename T, Act ACT>
struct StoreGated {
    static constexpr int kParts = 2;
    T* out;
    __device__ __forceinline__ void operator()(int64_t at, const float (&sum)[2]) const { out[at] = from_float<T>(activate<ACT>(sum[0]) * sum[1]); }
};

template <typename T, int B, bool NORM, typename Store>
__device__ __forceinline__ void gemv(const void* x, const float* norm, float eps, const T* w, int k, int n, const Store& store) {
    constexpr int kParts = Store::kParts, kRing = kParts == 2 ? 2 : 3, kMmas = (B + 3) / 4;
    extern __shared__ __align__(128) char staged[];
    __shared__ float partial[kGemvWarps][kParts][kMmas * 4][kTile];
    pdl_launch();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane >> 2, quad = lane & 3;
    const int tiles = n / kTile;
    int split_log = 0;
    while ((1 << split_log) < kGemvWarps && (tiles << (split_log + 1)) <= int(gridDim.x) * kGemvWarps) ++split_log;
    const int split = 1 << split_log, part = warp & (split - 1), stride = gridDim.x * (kGemvWarps >> split_log);
    // Neighbouring tiles go to different blocks, so that all multiprocessors are at work however few tiles there are.
    const int first = blockIdx.x + (warp >> split_log) * gridDim.x;
    const int chunks = k / kChunk, batches = (chunks + kBatch - 1) / kBatch;
    const int from = (batches * part) >> split_log, len = ((batches * (part + 1)) >> split_log) - from;
    const int total = first < tiles ? (tiles - first + stride - 1) / stride * len : 0;
    const bool ragged = part == split - 1 && chunks % kBatch != 0;  // the last batch of a tile is short

    const int64_t row_bytes = int64_t(k) * sizeof(T), up = row_bytes * n;
    int64_t jump = stride * kTile * row_bytes - int64_t(len - 1) * kBatchStep;  // from the last batch of a tile to the first of the next
    asm("" : "+l"(jump));                                                       // a register, not to be computed again at every load
    const char* next = reinterpret_cast<const char*>(w) + (int64_t(first) * kTile + row) * row_bytes + from * kBatchStep + quad * 16;
    int to_load = total, tile_left = len;
    uint32_t ring[kRing][kBatch][kParts][4];
    const auto load = [&](uint32_t (&to)[kBatch][kParts][4]) {
        if (to_load <= 0) return;
        --to_load;
        const bool last = --tile_left == 0;
        if (last && ragged) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
#pragma unroll
                for (int p = 0; p < kParts; ++p) {
                    to[i][p][0] = to[i][p][1] = to[i][p][2] = to[i][p][3] = 0;
                    if (i < chunks % kBatch) load_weights(to[i][p], next + p * up + i * kStep);
                }
        } else {
#pragma unroll
            for (int p = 0; p < kParts; ++p)
#pragma unroll
                for (int i = 0; i < kBatch; ++i) load_weights(to[i][p], next + p * up + i * kStep);
        }
        next += last ? jump : kBatchStep;
        tile_left = last ? len : tile_left;
    };
#pragma unroll
    for (int i = 0; i < kRing; ++i) load(ring[i]);

    // A host that gives less shared memory than the head of this file says must not get wrong numbers.
    if (dynamic_shared() < uint32_t(B * x_stride(int(row_bytes)))) __trap();
    if constexpr (NORM) {
        for (int c = threadIdx.x * 32; c < k; c += kGemvThreads * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(norm + c));
        pdl_wait();
        norm_rows<T, B>(static_cast<const float*>(x), norm, eps, k, staged);
    } else {
        pdl_wait();
        stage_rows<B>(static_cast<const char*>(x), int(row_bytes), staged);
    }
    // The lane's column: row (lane / 4) % 4 of each four of x, pairs 0 and 2 or 1 and 3 of every eight. Columns
    // without a row repeat the first, and nobody reads them.
    const int column = row & 3, x_rows = 4 * x_stride(int(row_bytes));
    const char* const x_lane = staged + (column < B ? column : 0) * x_stride(int(row_bytes)) + from * kBatchStep + quad * 16 + (row >> 2) * 8;

    float acc[kParts][kMmas][4] = {};
    // c[g][b] + c[g + 8][b + 4]: complete in quads 0 and 1, with rows 4 m + 2 quad + (0, 1) of the batch.
    const auto fold = [&](const float (&c)[4], float (&sum)[2]) {
        sum[0] = c[0] + __shfl_xor_sync(~0u, c[2], 2);
        sum[1] = c[1] + __shfl_xor_sync(~0u, c[3], 2);
    };
    int tile = first, left = len;
    const char* x_at = x_lane;
    for (int done = 0; done < total;) {
#pragma unroll
        for (int r = 0; r < kRing; ++r) {
            if (done == total) break;
            ++done;
            uint2 xs[kBatch][kMmas];
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
#pragma unroll
                for (int m = 0; m < kMmas; ++m) xs[i][m] = *reinterpret_cast<const uint2*>(x_at + m * x_rows + i * kStep);
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
#pragma unroll
                for (int p = 0; p < kParts; ++p)
#pragma unroll
                    for (int m = 0; m < kMmas; ++m) mma<T>(acc[p][m], ring[r][i][p], xs[i][m].x, xs[i][m].y);
            load(ring[r]);
            x_at += kBatchStep;
            if (--left == 0 && split == 1) {
#pragma unroll
                for (int m = 0; m < kMmas; ++m) {
                    float sum[kParts][2];
#pragma unroll
                    for (int p = 0; p < kParts; ++p) fold(acc[p][m], sum[p]);
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int b = m * 4 + quad * 2 + j;
                        float one[kParts];
#pragma unroll
                        for (int p = 0; p < kParts; ++p) one[p] = sum[p][j];
                        if (quad < 2 && b < B) store(int64_t(b) * n + tile * kTile + row, one);
                    }
#pragma unroll
                    for (int p = 0; p < kParts; ++p) acc[p][m][0] = acc[p][m][1] = acc[p][m][2] = acc[p][m][3] = 0.f;
                }
                left = len, tile += stride, x_at = x_lane;
            }
        }
    }
    if (split == 1) return;

    // Shared tiles: every warp has had one at most.
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
        for (int m = 0; m < kMmas; ++m) {
            float sum[2];
            fold(acc[p][m], sum);
            if (quad < 2) partial[warp][p][m * 4 + quad * 2][row] = sum[0], partial[warp][p][m * 4 + quad * 2 + 1][row] = sum[1];
        }
    __syncthreads();
    if (part != 0 || first >= tiles) return;
    for (int i = lane; i < B * kTile; i += 32) {
        float sum[kParts] = {};
        for (int other = warp; other < warp + split; ++other)
#pragma unroll
            for (int p = 0; p < kParts; ++p) sum[p] += partial[other][p][i / kTile][i % kTile];
        store(int64_t(i / kTile) * n + first * kTile + i % kTile, sum);
    }
}

}  // namespace skip

#define GEMV_BOUNDS extern "C" __global__ void __launch_bounds__(skip::kGemvThreads, 2)
#define GEMV_PLAIN(NAME, T, OUT, STORE, B)                                                     \
    GEMV_BOUNDS NAME##_b##B(const T* x, const T* w, int k, int n, OUT* out) {                  \
        skip::gemv<T, B, false>(x, nullptr, 0.f, w, k, n, skip::STORE{out});                   \
    }
#define GEMV_NORM(NAME, T, OUT, STORE, B)                                                                                  \
    GEMV_BOUNDS NAME##_b##B(const float* x, const float* norm, float eps, const T* w, int k, int n, OUT* out) {            \
        skip::gemv<T, B, true>(x, norm, eps, w, k, n, skip::STORE{out});                                                   \
    }
#define GEMV_COMMA ,
#define GEMV(N, T, B)                                                                                                      \
    GEMV_PLAIN(gemv_##N##_##N, T, T, StoreRounded<T>, B)                                                                   \
    GEMV_PLAIN(gemv_##N##_##N##_f32, T, float, StoreFloat, B)                                                              \
    GEMV_PLAIN(gemv_residual_##N##_##N, T, float, AddFloat, B)                                                             \
    GEMV_NORM(norm_gemv_##N##_##N, T, T, StoreRounded<T>, B)                                                               \
    GEMV_NORM(norm_gemv_##N##_##N##_f32, T, float, StoreFloat, B)                                                          \
    GEMV_NORM(norm_gemv_gated_##N##_##N##_silu, T, T, StoreGated<T GEMV_COMMA skip::Act::silu>, B)                         \
    GEMV_NORM(norm_gemv_gated_##N##_##N##_gelu_tanh, T, T, StoreGated<T GEMV_COMMA skip::Act::gelu_tanh>, B)
#define GEMV_ALL(N, T) GEMV(N, T, 1) GEMV(N, T, 2) GEMV(N, T, 4) GEMV(N, T, 8)
GEMV_ALL(bf16, __nv_bfloat16)
GEMV_ALL(fp16, __half)

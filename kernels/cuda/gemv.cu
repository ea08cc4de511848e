// Matrix products of 1, 2, 4 or 8 rows: out[b][n] = sum over k of x[b][k] * w[n][k], as fast as the weights can be read.
//
// The weights are the A operand of mma.m16n8k16 exactly as 16-byte loads bring them. A lane's eight values of row g are, as registers a0 to a3,
// k-pairs 0 and 2 of MMA row g and pairs 1 and 3 of MMA row g + 8; so columns 0 to 3 of B hold pairs 0 and 2 of four rows of x, columns 4 to
// 7 pairs 1 and 3 of the same, and c[g][b] + c[g + 8][b + 4] is the sum. One MMA takes 8 rows of w by 32 of k; eight rows of x take two.
// A warp runs along its tiles of 8 rows of w with a ring of loads in registers that does not drain between tiles.
//
// A kernel fits any grid: 1, 2, 4 or 8 warps share the k of a tile, as many as the grid has warps for, and add up through shared memory in
// order; with fewer warps than tiles each warp strides over whole tiles. Best is min(n / 8, 3 * SMs) blocks of 256 threads, where the
// tiles do not exceed that; else as many blocks as leave no short last round: tiles / ceil(tiles / (16 * SMs)) / 8.
//
// The weights do not depend on the kernel before, so the ring is filled before `pdl_wait`: launched with programmatic serialization, a chain
// of these keeps memory busy across kernel boundaries. k is a multiple of 32, n of 8.
//
//   gemv_<T>_<W>_b<B>            (const T* x, const W* w, int k, int n, T* out)
//   gemv_<T>_<W>_f32_b<B>        (const T* x, const W* w, int k, int n, float* out)
//   gemv_residual_<T>_<W>_b<B>   (const T* x, const W* w, int k, int n, float* residual)                out is added to residual
//   norm_gemv_<T>_<W>_b<B>       (const float* x, const float* norm, float eps, const W* w, int k, int n, T* out)
//   norm_gemv_<T>_<W>_f32_b<B>   (const float* x, const float* norm, float eps, const W* w, int k, int n, float* out)
//   norm_gemv_gated_<T>_<W>_<silu|gelu_tanh>_b<B>  (... as norm_gemv ...)   w is [gate | up], 2 n rows; out = act(gate) * up
//
// The norm forms take rows of the float32 residual, norm them in every block as rms_norm_<T> does, rounded to T, and keep them in dynamic
// shared memory: B * (2 * k rounded up to a multiple of 128, + 64) bytes.
#include "common/mma.cuh"
#include "common/ops.cuh"

namespace skip {

constexpr int kGemvWarps = 8;
constexpr int kTile = 8;     // rows of w
constexpr int kChunk = 32;   // k of one 16-byte load a lane

// Weights are read once: they need no place in L1, which x keeps.
__device__ __forceinline__ void load_weights(uint32_t (&v)[4], const char* p) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
// A plain load: x is written by the kernel before, while this one may already run.
__device__ __forceinline__ uint32_t load_x(const char* p) {
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// Rows of x normed into shared memory as T; rows are `stride` bytes apart.
template <typename T, int B>
__device__ __forceinline__ void norm_rows(const float* x, const float* norm, float eps, int k, char* to, int stride) {
    constexpr int kWarpsARow = kGemvWarps / B, kThreadsARow = 32 * kWarpsARow;
    __shared__ float sums[kGemvWarps];
    const int warp = threadIdx.x / 32, row = warp / kWarpsARow, thread = threadIdx.x % kThreadsARow;
    const float* from = x + int64_t(row) * k;
    float sum = 0.f;
#pragma unroll 4
    for (int c = thread * 4; c < k; c += kThreadsARow * 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + c);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarpsARow; ++i) sum += sums[row * kWarpsARow + i];
    const float factor = 1.f / sqrtf(sum / float(k) + eps);
#pragma unroll 4
    for (int c = thread * 4; c < k; c += kThreadsARow * 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + c), g = *reinterpret_cast<const float4*>(norm + c);
        *reinterpret_cast<uint2*>(to + row * stride + c * 2) =
            make_uint2(round2<T>(v.x * factor * g.x, v.y * factor * g.y), round2<T>(v.z * factor * g.z, v.w * factor * g.w));
    }
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
    constexpr int kParts = Store::kParts, kRing = 8 / kParts, kAhead = NORM ? 2 : 4, kMmas = (B + 3) / 4;
    static_assert(kRing % kAhead == 0);
    extern __shared__ __align__(128) char normed[];
    __shared__ float partial[kGemvWarps][kParts][kMmas * 4][kTile];
    pdl_launch();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane >> 2, quad = lane & 3;
    const int tiles = n / kTile;
    int split_log = 0;
    while ((1 << split_log) < kGemvWarps && (tiles << (split_log + 1)) <= int(gridDim.x) * kGemvWarps) ++split_log;
    const int split = 1 << split_log, part = warp & (split - 1), stride = gridDim.x * (kGemvWarps >> split_log), chunks = k / kChunk;
    // Neighbouring tiles go to different blocks, so that all multiprocessors are at work however few tiles there are.
    const int first = blockIdx.x + (warp >> split_log) * gridDim.x;
    const int from = (chunks * part) >> split_log, len = ((chunks * (part + 1)) >> split_log) - from;
    const int total = first < tiles ? (tiles - first + stride - 1) / stride * len : 0;

    constexpr int kStep = kChunk * sizeof(T);
    const int64_t row_bytes = int64_t(k) * sizeof(T), up = row_bytes * n;
    int64_t jump = stride * kTile * row_bytes - int64_t(len - 1) * kStep;  // from the last chunk of a tile to the first of the next
    asm("" : "+l"(jump));                                                  // a register, not to be computed again at every load
    const char* next = reinterpret_cast<const char*>(w) + (int64_t(first) * kTile + row) * row_bytes + from * kStep + quad * 16;
    int to_load = total, tile_left = len;
    uint32_t ring[kRing][kParts][4];
    const auto load = [&](uint32_t (&to)[kParts][4]) {
        if (to_load <= 0) return;
        --to_load;
        load_weights(to[0], next);
        if constexpr (kParts == 2) load_weights(to[1], next + up);
        const bool last = --tile_left == 0;
        next += last ? jump : kStep;
        tile_left = last ? len : tile_left;
    };
#pragma unroll
    for (int i = 0; i < kRing; ++i) load(ring[i]);

    // x of the lane's column: row (lane / 4) % 4 of the batch, pairs 0 and 2 or 1 and 3.
    const int column = row & 3;
    const char* x_lane;
    int x_stride = int(row_bytes);
    if constexpr (NORM) {
        for (int c = threadIdx.x * 32; c < k; c += kGemvWarps * 32 * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(norm + c));
        x_stride = (int(row_bytes) + 127) / 128 * 128 + 64;
        pdl_wait();
        norm_rows<T, B>(static_cast<const float*>(x), norm, eps, k, normed, x_stride);
        x_lane = normed;
    } else {
        pdl_wait();
        x_lane = static_cast<const char*>(x);
    }
    x_lane += column * x_stride + from * kStep + quad * 16 + (row >> 2) * 4;
    const char* x_next = x_lane;
    int x_left = len, x_to_load = total;
    uint32_t xs[kAhead][kMmas][2];
    const auto load_xs = [&](uint32_t (&to)[kMmas][2]) {
        if (x_to_load <= 0) return;
        --x_to_load;
#pragma unroll
        for (int m = 0; m < kMmas; ++m) {
            to[m][0] = to[m][1] = 0;
            if (B < 4 && column >= B) continue;
            const char* at = x_next + m * 4 * x_stride;
            if constexpr (NORM) {
                to[m][0] = *reinterpret_cast<const uint32_t*>(at);
                to[m][1] = *reinterpret_cast<const uint32_t*>(at + 8);
            } else {
                to[m][0] = load_x(at);
                to[m][1] = load_x(at + 8);
            }
        }
        const bool last = --x_left == 0;
        x_next = last ? x_lane : x_next + kStep;
        x_left = last ? len : x_left;
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_xs(xs[i]);

    float acc[kParts][kMmas][4] = {};
    // The lane's two sums, complete in lanes of quads 0 and 1: row `row` of the tile and rows 4 m + 2 quad + (0, 1) of the batch.
    const auto fold = [&](const float (&c)[4], float (&sum)[2]) {
        sum[0] = c[0] + __shfl_xor_sync(~0u, c[2], 2);
        sum[1] = c[1] + __shfl_xor_sync(~0u, c[3], 2);
    };
    int tile = first, left = len;
    for (int done = 0; done < total;) {
#pragma unroll
        for (int i = 0; i < kRing; ++i) {
            if (done == total) break;
            ++done;
#pragma unroll
            for (int p = 0; p < kParts; ++p)
#pragma unroll
                for (int m = 0; m < kMmas; ++m) mma<T>(acc[p][m], ring[i][p], xs[i % kAhead][m][0], xs[i % kAhead][m][1]);
            load(ring[i]);
            load_xs(xs[i % kAhead]);
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
                left = len, tile += stride;
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

#define GEMV_BOUNDS extern "C" __global__ void __launch_bounds__(skip::kGemvWarps * 32, 2)
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

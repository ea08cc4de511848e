// Portable prefill: mma.sync and cp.async, every chip from sm_80 on. Votes: 128 rows x 128 keys, keys ascending, running maximum.
//
// A block owns 128 query rows of one head. WARPS warps stand in a grid of (128 / (16 MT)) row groups and KS key halves: at head_dim 128 two
// warps share 32 rows and take 64 keys of each tile, because B fragments read once then serve 32 rows and shared memory is what limits
// mma.sync on Hopper. The halves keep their own running maximum and are merged once, at the end; the vote sees both halves' maximum.
// Dense and skip are separate kernels; a sequence without a threshold is bit-equal in both.
#include "common/mma.cuh"
#include "common/params.h"
#include "common/table.cuh"

namespace skip {

template <int D, int WARPS, int MT>
struct PrefillShape {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kRowGroups = kPage / (16 * MT);
    static constexpr int kHalves = WARPS / kRowGroups;
    static constexpr int kKeys = kPage / kHalves;    // keys a warp
    static constexpr int kNt = kKeys / 8;            // n-tiles of 8 keys
    static constexpr int kDt = D / 8;                // n-tiles of 8 dimensions
    static constexpr int kTileBytes = kPage * D * 2;
    static constexpr int kSmem = kTileBytes * 5 + 2 * kHalves * kPage * 4;  // Q, two stages of K and V, tile maxima
};

// Byte offset of 16-byte chunk `chunk` of row `row`; the swizzle keeps ldmatrix free of bank conflicts.
template <int D>
__device__ __forceinline__ uint32_t tile_offset(int row, int chunk) {
    return row * (D * 2) + ((chunk ^ (row & 7)) << 4);
}

template <int D, int THREADS>
__device__ __forceinline__ void load_tile(uint32_t dst, const char* src, int64_t row_bytes, int first, int end) {
    constexpr int kChunks = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < kPage * kChunks; i += THREADS) {
        const int row = i / kChunks, chunk = i % kChunks;
        const bool live = row >= first && row < end;
        cp_async16_zfill(dst + tile_offset<D>(row, chunk), src + (live ? row : first) * row_bytes + chunk * 16, live ? 16 : 0);
    }
}

// For tests: the vote of tile j in the oracle's shape, [heads][q_tiles][k_tiles].
__device__ __forceinline__ void record_vote(const AttnParams& p, const Seq& seq, int2 item, int j, uint8_t kept) {
    if (p.kept == nullptr || threadIdx.x != 0) return;
    const int64_t q_tiles = (seq.q_start + seq.q_len - 1) / kPage - seq.q_start / kPage + 1, k_tiles = (seq.kv_len + kPage - 1) / kPage;
    p.kept[p.kept_offset[item.x] + (blockIdx.x * q_tiles + item.y) * k_tiles + j] = kept;
}

// A K or V tile is contiguous; rows from `live` on become zero, so that whatever lies behind the last token cannot reach a product.
template <int D, int THREADS>
__device__ __forceinline__ void load_page(uint32_t dst, const char* src, int live) {
    constexpr int kChunks = D / 8, kStep = THREADS / kChunks;  // rows a round; a multiple of 8, so that the swizzle stays
    static_assert(kStep % 8 == 0);
    const int row = threadIdx.x / kChunks;
    dst += tile_offset<D>(row, threadIdx.x % kChunks);
    src += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kPage / kStep; ++i) cp_async16_zfill(dst + i * kStep * D * 2, src + i * THREADS * 16, row + i * kStep < live ? 16 : 0);
}

template <typename T, int D, int WARPS, int MT, bool SKIP>
__device__ __forceinline__ void prefill(const AttnParams& p) {
    using S = PrefillShape<D, WARPS, MT>;
    extern __shared__ __align__(128) char smem[];
    const uint32_t sq = smem_addr(smem), sk = sq + S::kTileBytes, sv = sk + 2 * S::kTileBytes;
    float* tile_max = reinterpret_cast<float*>(smem + 5 * S::kTileBytes);  // [parity][half][128]

    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int group = warp % S::kRowGroups, half = warp / S::kRowGroups;
    const int2 item = p.work[blockIdx.y];
    const Seq seq = p.seqs[item.x];
    const int head = blockIdx.x, kv_head = head / (p.heads / p.kv_heads);
    const int tile_row = (seq.q_start / kPage + item.y) * kPage;            // absolute position of row 0 of the tile
    const int first = max(seq.q_start - tile_row, 0), end = min(seq.q_start + seq.q_len - tile_row, kPage);
    const int32_t* pages = p.block_tables + seq.pages;
    const int last_tile = (tile_row + end - 1) / kPage;
    const int first_tile = p.window > 0 ? max(tile_row + first - p.window + 1, 0) / kPage : 0;

    const char* q = static_cast<const char*>(p.q) + ((seq.row + tile_row - seq.q_start) * p.q_stride + int64_t(head) * D) * 2;
    load_tile<D, S::kThreads>(sq, q, p.q_stride * 2, first, end);
    auto load_kv = [&](int j) {
        const int64_t base = (int64_t(pages[j]) * p.kv_heads + kv_head) * S::kTileBytes;
        const int live = min(seq.kv_len - j * kPage, kPage);
        load_page<D, S::kThreads>(sk + (j & 1) * S::kTileBytes, static_cast<const char*>(p.k) + base, live);
        load_page<D, S::kThreads>(sv + (j & 1) * S::kTileBytes, static_cast<const char*>(p.v) + base, live);
    };
    load_kv(first_tile);
    cp_async_commit();

    const float scale_log2 = p.scale * 1.44269504088896340736f;
    float threshold = -INFINITY;  // in units of q.k
    if constexpr (SKIP) {
        if (p.window == 0) threshold = ln_lambda(p.tables, seq.table, seq.final_len) / p.scale;
    }
    const bool votes = SKIP && threshold > -INFINITY;

    float o[MT][S::kDt][4] = {};
    float row_max[MT][2], row_sum[MT][2] = {}, vote_max[MT][2];
#pragma unroll
    for (int m = 0; m < MT; ++m) row_max[m][0] = row_max[m][1] = vote_max[m][0] = vote_max[m][1] = -INFINITY;
    const int my_row = group * 16 * MT + (lane >> 2);                        // + 16 m + 8 i
    unsigned n_skipped = 0;
    // Fragment addresses: a step of 16 dimensions flips bits 5 and up (the swizzle is an exclusive or), a step of 16 rows adds.
    const uint32_t q_frag = sq + tile_offset<D>(group * MT * 16 + (lane & 15), lane >> 4);
    const uint32_t k_frag = sk + tile_offset<D>(half * S::kKeys + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    const uint32_t v_frag = sv + tile_offset<D>(half * S::kKeys + (lane & 15), lane >> 4);

    for (int j = first_tile; j <= last_tile; ++j) {
        cp_async_wait<0>();
        __syncthreads();
        if (j < last_tile) load_kv(j + 1);
        cp_async_commit();

        float s[MT][S::kNt][4] = {};
        const uint32_t stage = (j & 1) * S::kTileBytes;
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) ldmatrix_x4(a[m], (q_frag ^ (kk << 5)) + m * 16 * D * 2);
#pragma unroll
            for (int n = 0; n < S::kNt / 2; ++n) {
                uint32_t b[4];
                ldmatrix_x4(b, ((k_frag + stage) ^ (kk << 5)) + n * 16 * D * 2);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    mma<T>(s[m][2 * n], a[m], b[0], b[1]);
                    mma<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
        // Tiles before the diagonal need no mask; a windowed layer masks wherever its edge may cut.
        const int key0 = j * kPage + half * S::kKeys + (lane & 3) * 2;
        const bool cut = p.window > 0 && tile_row + end - 1 - j * kPage >= p.window;
        if (j * kPage + kPage - 1 > tile_row || cut) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < S::kNt; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int key = key0 + n * 8 + (e & 1), pos = tile_row + my_row + m * 16 + (e >> 1) * 8;
                        if (key > pos || (p.window > 0 && key <= pos - p.window)) s[m][n][e] = -INFINITY;
                    }
        }
        float t[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float x = fmaxf(s[m][0][2 * i], s[m][0][2 * i + 1]);
#pragma unroll
                for (int n = 1; n < S::kNt; ++n) x = fmaxf(x, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
                x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
                t[m][i] = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            }
        if constexpr (SKIP) {
            if (votes) {
                // Every existing row sees at least the tile's first key, so every existing row votes; a running maximum of -inf
                // compares false and keeps the tile.
                bool below = true;
                float* mine = tile_max + ((j & 1) * S::kHalves + half) * kPage;
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int r = my_row + m * 16 + i * 8;
                        below &= r < first || r >= end || t[m][i] - (S::kHalves > 1 ? vote_max[m][i] : row_max[m][i]) < threshold;
                        if (S::kHalves > 1 && (lane & 3) == 0) mine[r] = t[m][i];
                    }
                const bool skip = barrier_all(below);
                n_skipped += skip;
                if (skip) {
                    record_vote(p, seq, item, j, 0);
                    continue;
                }
                if constexpr (S::kHalves > 1) {
                    const float* other = tile_max + ((j & 1) * S::kHalves + (S::kHalves - 1 - half)) * kPage;
#pragma unroll
                    for (int m = 0; m < MT; ++m)
#pragma unroll
                        for (int i = 0; i < 2; ++i) vote_max[m][i] = fmaxf(fmaxf(vote_max[m][i], t[m][i]), other[my_row + m * 16 + i * 8]);
                }
            }
        }
        record_vote(p, seq, item, j, 1);

        bool moved = false;
        float alpha[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float top = fmaxf(row_max[m][i], t[m][i]);
                const float safe = top == -INFINITY ? 0.f : top * scale_log2;
                alpha[m][i] = exp2_approx(row_max[m][i] * scale_log2 - safe);
                moved |= alpha[m][i] != 1.f;
                row_max[m][i] = top;
                float sum = 0.f;
#pragma unroll
                for (int n = 0; n < S::kNt; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float x = exp2_approx(fmaf(s[m][n][2 * i + e], scale_log2, -safe));
                        s[m][n][2 * i + e] = x;
                        sum += x;
                    }
                row_sum[m][i] = row_sum[m][i] * alpha[m][i] + sum;
            }
        if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < S::kDt; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) o[m][n][e] *= alpha[m][e >> 1];
        }
#pragma unroll
        for (int kk = 0; kk < S::kKeys / 16; ++kk) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                a[m][0] = pack2<T>(s[m][2 * kk][0], s[m][2 * kk][1]);
                a[m][1] = pack2<T>(s[m][2 * kk][2], s[m][2 * kk][3]);
                a[m][2] = pack2<T>(s[m][2 * kk + 1][0], s[m][2 * kk + 1][1]);
                a[m][3] = pack2<T>(s[m][2 * kk + 1][2], s[m][2 * kk + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < S::kDt / 2; ++n) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, ((v_frag + stage) ^ (n << 5)) + kk * 16 * D * 2);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    mma<T>(o[m][2 * n], a[m], b[0], b[1]);
                    mma<T>(o[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row_sum[m][i] += __shfl_xor_sync(0xffffffffu, row_sum[m][i], 1);
            row_sum[m][i] += __shfl_xor_sync(0xffffffffu, row_sum[m][i], 2);
        }
    if constexpr (S::kHalves == 2) {
        // The upper half leaves its sums in the K/V stages; the lower adds them to its own.
        cp_async_wait<0>();
        __syncthreads();
        float* sums = reinterpret_cast<float*>(smem + S::kTileBytes);        // [128][D]
        float* stats = reinterpret_cast<float*>(smem);                       // [128][2], over Q
        if (half == 1) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int r = my_row + m * 16 + i * 8;
                    if ((lane & 3) == 0) stats[2 * r] = row_max[m][i], stats[2 * r + 1] = row_sum[m][i];
#pragma unroll
                    for (int n = 0; n < S::kDt; ++n)
                        *reinterpret_cast<float2*>(sums + r * D + (((n * 8 + (lane & 3) * 2)) ^ ((r & 3) << 3))) = make_float2(o[m][n][2 * i], o[m][n][2 * i + 1]);
                }
        }
        __syncthreads();
        if (half == 1) return;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = my_row + m * 16 + i * 8;
                const float top = fmaxf(row_max[m][i], stats[2 * r]);
                const float safe = top == -INFINITY ? 0.f : top * scale_log2;
                const float mine = exp2_approx(row_max[m][i] * scale_log2 - safe), theirs = exp2_approx(stats[2 * r] * scale_log2 - safe);
                row_max[m][i] = top;
                row_sum[m][i] = row_sum[m][i] * mine + stats[2 * r + 1] * theirs;
#pragma unroll
                for (int n = 0; n < S::kDt; ++n) {
                    const float2 x = *reinterpret_cast<const float2*>(sums + r * D + (((n * 8 + (lane & 3) * 2)) ^ ((r & 3) << 3)));
                    o[m][n][2 * i] = o[m][n][2 * i] * mine + x.x * theirs;
                    o[m][n][2 * i + 1] = o[m][n][2 * i + 1] * mine + x.y * theirs;
                }
            }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = my_row + m * 16 + i * 8;
            if (r < first || r >= end) continue;
            const int64_t row = seq.row + tile_row - seq.q_start + r;
            const float inv = row_sum[m][i] > 0.f ? 1.f / row_sum[m][i] : 0.f;
            uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<char*>(p.out) + ((row * p.heads + head) * D + (lane & 3) * 2) * 2);
#pragma unroll
            for (int n = 0; n < S::kDt; ++n) out[n * 4] = pack2<T>(o[m][n][2 * i] * inv, o[m][n][2 * i + 1] * inv);
            if (p.lse && (lane & 3) == 0)
                p.lse[row * p.heads + head] = row_sum[m][i] > 0.f ? row_max[m][i] * p.scale + logf(row_sum[m][i]) : -INFINITY;
        }
    if constexpr (SKIP) {
        if (votes && p.counters && threadIdx.x == 0) {
            atomicAdd(&p.counters[item.x].votes, static_cast<unsigned long long>(last_tile + 1));
            atomicAdd(&p.counters[item.x].skipped, static_cast<unsigned long long>(n_skipped));
        }
    }
}

}  // namespace skip

#define PREFILL(NAME, T, D, WARPS, MT, BLOCKS)                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) attn_prefill_##NAME##_d##D##_dense_mma(const __grid_constant__ skip::AttnParams p) { \
        skip::prefill<T, D, WARPS, MT, false>(p);                                                                    \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) attn_prefill_##NAME##_d##D##_skip_mma(const __grid_constant__ skip::AttnParams p) { \
        skip::prefill<T, D, WARPS, MT, true>(p);                                                                     \
    }
PREFILL(bf16, __nv_bfloat16, 64, 4, 2, 2)
PREFILL(fp16, __half, 64, 4, 2, 2)
PREFILL(bf16, __nv_bfloat16, 128, 8, 2, 1)
PREFILL(fp16, __half, 128, 8, 2, 1)

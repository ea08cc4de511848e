// Prefill of one tile of query rows: the loop that attn_prefill_mma.cu describes.
#pragma once
#include "launch.h"
#include "mma.cuh"
#include "params.h"
#include "table.cuh"

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
    static constexpr bool kStreams = D == 256;
    static constexpr int kParts = kStreams ? 2 : 1;  // loads of a K or V tile
    static constexpr int kSlot = kTileBytes / kParts;
    static constexpr int kVotes = kTileBytes + (kStreams ? 3 : 4) * kSlot;  // offset of the tiles' maxima
    static_assert(kThreads == prefill_threads(D) && kVotes + (kHalves == 2 ? 3 * kPage * 4 : 0) == prefill_shared_bytes(D));
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

// What is read once a tile or less: in shared memory, where it holds no registers in the loop.
struct Tile {
    const int32_t* pages;
    uint8_t* kept;        // for tests: where the votes of this row of tiles go, or null
    int32_t kv_len;
    int32_t row;          // absolute position of the tile's row 0
    int32_t first, end;   // rows of the tile that exist
    int32_t packed_row;   // row 0 in the packed queries and outputs
    int32_t first_key_tile, last_key_tile;
    float threshold;      // in units of q.k
    uint32_t skipped;
};

// Votes for tests, in the oracle's shape: [heads][q_tiles][k_tiles].
__device__ __forceinline__ uint8_t* votes_of(const AttnParams& p, const Seq& seq, Work item) {
    if (p.kept == nullptr) return nullptr;
    const int64_t q_tiles = (seq.q_start + seq.q_len - 1) / kPage - seq.q_start / kPage + 1, k_tiles = (seq.kv_len + kPage - 1) / kPage;
    return p.kept + p.kept_offset[item.seq] + (blockIdx.x * q_tiles + item.tile) * k_tiles;
}

// K and V tiles are contiguous; rows from `live` on become zero, so that whatever lies behind the last token cannot reach a product.
template <int D, int THREADS, int ROWS>
__device__ __forceinline__ void load_page(uint32_t dst, const char* src, int live) {
    constexpr int kChunks = D / 8, kStep = THREADS / kChunks;  // rows a round; a multiple of 8, so that the swizzle stays
    static_assert(kStep % 8 == 0);
    const int row = threadIdx.x / kChunks;
    dst += tile_offset<D>(row, threadIdx.x % kChunks);
    src += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < ROWS / kStep; ++i) cp_async16_zfill(dst + i * kStep * D * 2, src + i * THREADS * 16, row + i * kStep < live ? 16 : 0);
}

// With TOPS every row's maximum over all its keys, in units of q.k, is left in `tops`, [128].
template <typename T, typename TO, int D, int WARPS, int MT, bool SKIP, bool TOPS = false>
__device__ __forceinline__ void prefill(const AttnParams& p, float* tops = nullptr) {
    using S = PrefillShape<D, WARPS, MT>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    constexpr bool kSpares = SKIP;
#else
    constexpr bool kSpares = false;
#endif
    extern __shared__ __align__(512) char smem[];
    const uint32_t sq = smem_addr(smem), slots = sq + S::kTileBytes;  // K, K, V, V in turns; streaming: any of three
    float* tile_max = reinterpret_cast<float*>(smem + S::kVotes);     // two halves: [half][128], and the running maximum [128]
    float* running_max = tile_max + 2 * kPage;

    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int group = warp % S::kRowGroups, half = warp / S::kRowGroups;
    const int head = blockIdx.x, kv_head = head / (p.heads / p.kv_heads);
    __shared__ Tile shared_tile;
    if (threadIdx.x == 0) {
        const Work item = p.work[blockIdx.y];
        Tile t = {};
        if (item.seq >= 0) {
            const Seq seq = p.seqs[item.seq];
            t.row = (seq.q_start / kPage + item.tile) * kPage;
            t.first = max(seq.q_start - t.row, 0);
            t.end = min(seq.q_start + seq.q_len - t.row, kPage);
            t.pages = p.block_tables + seq.pages;
            t.kept = votes_of(p, seq, item);
            t.kv_len = seq.kv_len;
            t.packed_row = seq.row + t.row - seq.q_start;
            t.first_key_tile = p.window > 0 ? max(t.row + t.first - p.window + 1, 0) / kPage : 0;
            t.last_key_tile = (t.row + t.end - 1) / kPage;
            t.threshold = SKIP && p.window == 0 ? ln_lambda(p.tables, seq.table, seq.final_len) / p.scale : -INFINITY;
        }
        shared_tile = t;
    }
    __syncthreads();
    volatile Tile& tile = shared_tile;
    if (tile.end == 0) return;

    const char* q = static_cast<const char*>(p.q) + (tile.packed_row * p.q_stride + int64_t(head) * D) * 2;
    load_tile<D, S::kThreads>(sq, q, p.q_stride * 2, tile.first, tile.end);
    auto load_kv = [&](int j) {
        const int64_t base = (int64_t(tile.pages[j]) * p.kv_heads + kv_head) * S::kTileBytes;
        const int live = tile.kv_len - j * kPage;
        load_page<D, S::kThreads, kPage>(slots + (j & 1) * S::kSlot, static_cast<const char*>(p.k) + base, live);
        load_page<D, S::kThreads, kPage>(slots + (2 + (j & 1)) * S::kSlot, static_cast<const char*>(p.v) + base, live);
    };
    // Streaming: loads run two ahead of the products, four to a tile.
    int asked = 4 * tile.first_key_tile, load_slot = 0, slot = 2;
    auto ask = [&] {
        const int j = asked >> 2, part = asked & 1;
        if (j <= tile.last_key_tile) {
            const int64_t base = (int64_t(tile.pages[j]) * p.kv_heads + kv_head) * S::kTileBytes + part * S::kSlot;
            load_page<D, S::kThreads, kPage / S::kParts>(slots + load_slot * S::kSlot, static_cast<const char*>(asked & 2 ? p.v : p.k) + base, tile.kv_len - j * kPage - part * (kPage / S::kParts));
        }
        cp_async_commit();
        ++asked;
        load_slot = load_slot == 2 ? 0 : load_slot + 1;
    };
    // The next part is there, the one before it done with in every warp, and its slot asked for anew.
    auto next_part = [&] {
        cp_async_wait<1>();
        __syncthreads();
        ask();
        slot = slot == 2 ? 0 : slot + 1;
    };
    if constexpr (S::kStreams) {
        ask();
        ask();
    } else {
        load_kv(tile.first_key_tile);
        cp_async_commit();
    }

    const float scale_log2 = p.scale * 1.44269504088896340736f;

    float o[MT][S::kDt][4] = {};
    float row_max[MT][2], row_sum[MT][2] = {};
    // From sm_100 on ptxas needs more registers for addresses; a kernel that votes keeps its sums in shared memory there rather than spill.
    __shared__ float spare[kSpares ? 2 * MT : 1][kSpares ? S::kThreads : 1];
    if constexpr (kSpares) {
#pragma unroll
        for (int i = 0; i < 2 * MT; ++i) spare[i][threadIdx.x] = 0.f;
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;
    const int my_row = group * 16 * MT + (lane >> 2);                        // + 16 m + 8 i
    if constexpr (SKIP && S::kHalves == 2) {
        if (threadIdx.x < kPage) running_max[threadIdx.x] = -INFINITY;       // seen after the loop's first barrier
    }
    // Fragment addresses: a step of 16 dimensions flips bits 5 and up (the swizzle is an exclusive or), a step of 16 rows adds.
    uint32_t q_frag = sq + tile_offset<D>(group * MT * 16 + (lane & 15), lane >> 4);
    const uint32_t k_frag = slots + tile_offset<D>(half * S::kKeys + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    const uint32_t v_frag = slots + (S::kStreams ? 0 : 2) * S::kSlot + tile_offset<D>(half * S::kKeys + (lane & 15), lane >> 4);

    for (int j = tile.first_key_tile; j <= tile.last_key_tile; ++j) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("" : "+r"(q_frag));  // the steps' addresses are worked out anew: kept, they spill
#endif
        if constexpr (!S::kStreams) {
            cp_async_wait<0>();
            __syncthreads();
            if (j < tile.last_key_tile) load_kv(j + 1);
            cp_async_commit();
        }
        float s[MT][S::kNt][4] = {};
#pragma unroll
        for (int part = 0; part < S::kParts; ++part) {
            if constexpr (S::kStreams) next_part();
            const uint32_t stage = (S::kStreams ? slot : j & 1) * S::kSlot;
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t a[MT][4];
#pragma unroll
                for (int m = 0; m < MT; ++m) ldmatrix_x4(a[m], (q_frag ^ (kk << 5)) + m * 16 * D * 2);
#pragma unroll
                for (int n = 0; n < S::kNt / 2 / S::kParts; ++n) {
                    uint32_t b[4];
                    ldmatrix_x4(b, ((k_frag + stage) ^ (kk << 5)) + n * 16 * D * 2);
                    const int at = 2 * n + part * (S::kNt / S::kParts);
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        mma<T>(s[m][at], a[m], b[0], b[1]);
                        mma<T>(s[m][at + 1], a[m], b[2], b[3]);
                    }
                }
            }
        }
        // Tiles before the diagonal need no mask; a windowed layer masks wherever its edge may cut.
        const int key0 = j * kPage + half * S::kKeys + (lane & 3) * 2;
        const bool cut = p.window > 0 && tile.row + tile.end - 1 - j * kPage >= p.window;
        if (j * kPage + kPage - 1 > tile.row || cut) {
            const int row0 = tile.row;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < S::kNt; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int key = key0 + n * 8 + (e & 1), pos = row0 + my_row + m * 16 + (e >> 1) * 8;
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
            if (tile.threshold > -INFINITY) {
                // Every existing row sees at least the tile's first key, so every existing row votes; a running maximum of -inf
                // compares false and keeps the tile.
                bool below = true;
                const int first = tile.first, end = tile.end;
                const float threshold = tile.threshold;
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int r = my_row + m * 16 + i * 8;
                        below &= r < first || r >= end || t[m][i] - (S::kHalves > 1 ? running_max[r] : row_max[m][i]) < threshold;
                        if (S::kHalves > 1 && (lane & 3) == 0) tile_max[half * kPage + r] = t[m][i];
                    }
                const bool skip = barrier_all(below);
                if (skip) {
                    // Nothing waits for the sum: it is on every skipped tile's way to the next barrier.
                    if (threadIdx.x == 0) atomicAdd(&shared_tile.skipped, 1u);
                    if (p.kept != nullptr && threadIdx.x == 0) tile.kept[j] = 0;
                    if constexpr (S::kStreams) {  // V was asked for already
                        next_part();
                        next_part();
                    }
                    continue;
                }
                if constexpr (S::kHalves > 1) {
                    // Both halves have read it; it is read again after the next tile's barrier.
                    if (threadIdx.x < kPage) running_max[threadIdx.x] = fmaxf(running_max[threadIdx.x], fmaxf(tile_max[threadIdx.x], tile_max[kPage + threadIdx.x]));
                }
            }
        }
        if (p.kept != nullptr && threadIdx.x == 0) tile.kept[j] = 1;

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
                if constexpr (kSpares) {
                    volatile float& kept = spare[2 * m + i][threadIdx.x];
                    kept = kept * alpha[m][i] + sum;
                } else {
                    row_sum[m][i] = row_sum[m][i] * alpha[m][i] + sum;
                }
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
        for (int part = 0; part < S::kParts; ++part) {
            if constexpr (S::kStreams) next_part();
            const uint32_t stage = (S::kStreams ? slot : j & 1) * S::kSlot;
#pragma unroll
            for (int kk = 0; kk < S::kKeys / 16 / S::kParts; ++kk) {
                const int at = 2 * kk + part * (S::kNt / S::kParts);
                uint32_t a[MT][4];
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    a[m][0] = pack2<T>(s[m][at][0], s[m][at][1]);
                    a[m][1] = pack2<T>(s[m][at][2], s[m][at][3]);
                    a[m][2] = pack2<T>(s[m][at + 1][0], s[m][at + 1][1]);
                    a[m][3] = pack2<T>(s[m][at + 1][2], s[m][at + 1][3]);
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
    }

#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (kSpares) row_sum[m][i] = spare[2 * m + i][threadIdx.x];
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
            if constexpr (TOPS) {
                if ((lane & 3) == 0) tops[r] = row_max[m][i];
            }
            if (r < tile.first || r >= tile.end) continue;
            const int64_t row = tile.packed_row + r;
            const float inv = row_sum[m][i] > 0.f ? 1.f / row_sum[m][i] : 0.f;
            uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<char*>(p.out) + ((row * p.heads + head) * D + (lane & 3) * 2) * 2);
#pragma unroll
            for (int n = 0; n < S::kDt; ++n) out[n * 4] = pack2<TO>(o[m][n][2 * i] * inv, o[m][n][2 * i + 1] * inv);
            if (p.lse && (lane & 3) == 0)
                p.lse[row * p.heads + head] = row_sum[m][i] > 0.f ? row_max[m][i] * p.scale + logf(row_sum[m][i]) : -INFINITY;
        }
    if constexpr (SKIP) {
        if (tile.threshold > -INFINITY && p.counters && threadIdx.x == 0) {
            Counters& counters = p.counters[p.work[blockIdx.y].seq];
            atomicAdd(&counters.votes, static_cast<unsigned long long>(tile.last_key_tile + 1));
            atomicAdd(&counters.skipped, static_cast<unsigned long long>(tile.skipped));
        }
    }
}

}  // namespace skip

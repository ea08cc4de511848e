// Prefill on Hopper: the loop that attn_prefill_wgmma.cu describes.
#pragma once
#include "hopper_block.cuh"

namespace skip {

// The same in all threads of a warp, and known to be: it goes to uniform registers, of which products want their descriptors.
__device__ __forceinline__ int warp_uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// Maxima of the two rows of a fragment.
__device__ __forceinline__ void row_maxima(const float (&s)[64], float (&top)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float x[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = fmaxf(s[4 * c + 2 * i], s[4 * c + 2 * i + 1]);
#pragma unroll
        for (int n = 4; n < 16; n += 4)
#pragma unroll
            for (int c = 0; c < 4; ++c) x[c] = fmaxf(x[c], fmaxf(s[4 * (n + c) + 2 * i], s[4 * (n + c) + 2 * i + 1]));
        float a = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        top[i] = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
    }
}

// On the diagonal: keys behind a row's own position. `row` is the fragment's first row in the tile.
__device__ __forceinline__ void mask_diagonal(float (&s)[64], int row, int lane) {
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (n * 8 + (lane & 3) * 2 + (e & 1) > row + (e >> 1) * 8) s[4 * n + e] = -INFINITY;
}

// Scores of keys 8 FROM to 8 END - 1 to weights, packed as the A fragments of the product with V, and added to the rows' sums.
template <typename T, int FROM = 0, int END = 16>
__device__ __forceinline__ void weigh(const float (&s)[64], uint32_t (&w)[32], const float (&safe)[2], float (&sum)[2], float scale_log2) {
    float part[2][2] = {};
#pragma unroll
    for (int n = FROM; n < END; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float x = exp2_approx(fmaf(s[4 * n + 2 * i], scale_log2, -safe[i])), y = exp2_approx(fmaf(s[4 * n + 2 * i + 1], scale_log2, -safe[i]));
            part[i][0] += x;
            part[i][1] += y;
            w[2 * n + i] = pack2<T>(x, y);
        }
    sum[0] += part[0][0] + part[0][1];
    sum[1] += part[1][0] + part[1][1];
}

template <typename T, typename TO, int D, bool SKIP>
struct HopperRows {
    using S = HopperShape<D>;
    static constexpr int kMt = S::kMt;
    // Without a way out of the middle of the loop, ptxas spills at head_dim 128 and serialises the products; with one it does not. The dense
    // kernel's is never taken.
    static constexpr bool kMayLeave = SKIP || D == 128;

    const AttnParams& p;
    const volatile HopperBlock& block; // read where it is needed: in shared memory it holds no registers
    const volatile HopperTile& tile;
    const uint32_t slots, full, empty;
    const int wg, lane, my_row;        // my_row: of the tile, + 64 m + 8 i
    const float scale_log2;
    uint64_t q;                        // descriptor of this warpgroup's first rows
    const bool votes;                  // the same throughout the warp; the dense kernels' is never set
    const float threshold;
    uint32_t skipped = 0;
    float o[kMt][D / 2];
    float row_max[kMt][2], row_sum[kMt][2];

    __device__ __forceinline__ uint32_t slot(int j, bool value) const { return (value ? S::kStages : 0) + j % S::kStages; }
    __device__ __forceinline__ void wait_full(int j, bool value) const { mbarrier_wait(full + slot(j, value) * 8, (j / S::kStages) & 1); }
    __device__ __forceinline__ void release(int j, bool value) const {
        if (lane == 0) mbarrier_arrive(empty + slot(j, value) * 8);
    }

    // Asks for the scores of key tile j.
    __device__ __forceinline__ void ask_scores(int j, int m, float (&s)[64]) const {
        const uint64_t k = matrix_at(slots + slot(j, false) * S::kTileBytes, 1);
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            const uint64_t step = (kk % 4) * 2;
            wgmma_scores<T>(s, q + (m * 64 * 128 + (kk / 4) * S::kRows * 128) / 16 + step, k + (kk / 4) * kPage * 8 + step, kk == 0);
        }
        wgmma_commit();
    }

    // Whether the tile is skipped, by everyone whose rows vote together.
    __device__ __forceinline__ bool vote(int j, const float (&top)[kMt][2]) {
        bool below = true;
#pragma unroll
        for (int m = 0; m < kMt; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) below &= top[m][i] - row_max[m][i] < threshold;
        bool skip;
        if constexpr (S::kVoters == 256) skip = named_barrier_all<1, 256>(below);
        else skip = wg == 0 ? named_barrier_all<1, 128>(below) : named_barrier_all<2, 128>(below);
        skip = __any_sync(0xffffffffu, skip);   // known to be the same throughout the warp
        skipped += skip;
        return skip;
    }

    __device__ __forceinline__ void record(int j, bool kept) const {
        if (p.kept != nullptr && threadIdx.x % S::kVoters == 0) tile.kept[j] = kept;
    }

    // New maxima, and what has been summed under the old ones scaled down to them.
    __device__ __forceinline__ void raise(const float (&top)[kMt][2], float (&safe)[kMt][2]) {
        float alpha[kMt][2];
        bool moved = false;
#pragma unroll
        for (int m = 0; m < kMt; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float to = fmaxf(row_max[m][i], top[m][i]);
                safe[m][i] = to == -INFINITY ? 0.f : to * scale_log2;
                alpha[m][i] = exp2_approx(row_max[m][i] * scale_log2 - safe[m][i]);
                moved |= alpha[m][i] != 1.f;
                row_max[m][i] = to;
                row_sum[m][i] *= alpha[m][i];
            }
        if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
            for (int m = 0; m < kMt; ++m)
#pragma unroll
                for (int n = 0; n < D / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) o[m][4 * n + e] *= alpha[m][e >> 1];
        }
    }

    // Adds the values of keys 16 FROM to 16 END - 1, weighed.
    template <int FROM = 0, int END = kPage / 16>
    __device__ __forceinline__ void ask_values(int j, int m, const uint32_t (&w)[32]) {
        const uint64_t v = matrix_at(slots + slot(j, true) * S::kTileBytes, kPage * 128);
#pragma unroll
        for (int kk = FROM; kk < END; ++kk) wgmma_values<T>(o[m], w + 4 * kk, v + kk * 16 * 8);
        wgmma_commit();
    }

    // A key tile whose scores nothing has been asked of yet (head_dim 64).
    template <bool DIAGONAL>
    __device__ __forceinline__ void whole_tile(int j) {
        float s[kMt][64], top[kMt][2], safe[kMt][2];
        wait_full(j, false);
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < kMt; ++m) ask_scores(j, m, s[m]);
        wgmma_wait<kMt - 1>();
        pin(s[0]);
        if constexpr (DIAGONAL) mask_diagonal(s[0], my_row, lane);
        row_maxima(s[0], top[0]);
        wgmma_wait<0>();
        if constexpr (kMt == 2) {
            pin(s[kMt - 1]);
            if constexpr (DIAGONAL) mask_diagonal(s[kMt - 1], my_row + 64, lane);
            row_maxima(s[kMt - 1], top[kMt - 1]);
        }
        release(j, false);
        if constexpr (kMayLeave) {
            if (votes && vote(j, top)) {
                record(j, false);
                wait_full(j, true);
                release(j, true);
                return;
            }
        }
        if constexpr (SKIP) record(j, true);
        raise(top, safe);
        wait_full(j, true);
        uint32_t w[kMt][32];
#pragma unroll
        for (int m = 0; m < kMt; ++m) {
            weigh<T>(s[m], w[m], safe[m], row_sum[m], scale_log2);
            pin(o[m]);
            wgmma_fence();
            ask_values(j, m, w[m]);
        }
        wgmma_wait<0>();
#pragma unroll
        for (int m = 0; m < kMt; ++m) pin(o[m]);
        release(j, true);
    }

    // A key tile whose scores were asked for before; the next one's are asked for at once, and come in beside this one's softmax.
    template <bool LAST>
    __device__ __forceinline__ void ahead_tile(int j, float (&s)[64], float (&next)[64]) {
        float top[1][2], safe[1][2];
        if constexpr (!LAST) {
            wait_full(j + 1, false);
            wgmma_fence();
            ask_scores(j + 1, 0, next);
        }
        if constexpr (LAST) mask_diagonal(s, my_row, lane);
        row_maxima(s, top[0]);
        if constexpr (kMayLeave) {
            if (votes && vote(j, top)) {
                record(j, false);
                wgmma_wait<0>();
                if constexpr (!LAST) {
                    pin(next);
                    release(j + 1, false);
                }
                wait_full(j, true);
                release(j, true);
                return;
            }
        }
        if constexpr (SKIP) record(j, true);
        raise(top, safe);
        uint32_t w[32];
        // In halves: the first is multiplied while the second is weighed.
        weigh<T, 0, 8>(s, w, safe[0], row_sum[0], scale_log2);
        wait_full(j, true);
        if constexpr (!LAST) {
            wgmma_wait<0>();
            pin(next);
            release(j + 1, false);
        }
        pin(o[0]);
        wgmma_fence();
        ask_values<0, 4>(j, 0, w);
        weigh<T, 8, 16>(s, w, safe[0], row_sum[0], scale_log2);
        wgmma_fence();
        ask_values<4, 8>(j, 0, w);
        wgmma_wait<0>();
        pin(o[0]);
        release(j, true);
    }

    __device__ __forceinline__ void all_tiles() {
        const int last = warp_uniform(tile.row / kPage);
        if constexpr (D == 64) {
#pragma unroll 1
            for (int j = 0; j < last; ++j) whole_tile<false>(j);
            whole_tile<true>(last);
        } else {
            float s[64], next[64];
            wait_full(0, false);
            wgmma_fence();
            ask_scores(0, 0, s);
            wgmma_wait<0>();
            pin(s);
            release(0, false);
            int j = 0;
#pragma unroll 1
            for (; j + 1 < last; j += 2) {
                ahead_tile<false>(j, s, next);
                ahead_tile<false>(j + 1, next, s);
            }
            if (j < last) {
                ahead_tile<false>(j, s, next);
#pragma unroll
                for (int i = 0; i < 64; ++i) s[i] = next[i];
            }
            ahead_tile<true>(last, s, next);
        }
    }

    __device__ __forceinline__ void write() {
        const int head = blockIdx.x;
        if constexpr (!SKIP) {
            for (int j = 0; j <= tile.row / kPage; ++j) record(j, true);
        }
#pragma unroll
        for (int m = 0; m < kMt; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float sum = row_sum[m][i];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                const int r = my_row + m * 64 + i * 8;
                if (r < tile.first || r >= tile.end) continue;
                const int64_t row = tile.packed_row + r;
                const float inv = sum > 0.f ? 1.f / sum : 0.f;
                uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<char*>(p.out) + ((row * p.heads + head) * D + (lane & 3) * 2) * 2);
#pragma unroll
                for (int n = 0; n < D / 8; ++n) out[n * 4] = pack2<TO>(o[m][4 * n + 2 * i] * inv, o[m][4 * n + 2 * i + 1] * inv);
                if (p.lse && (lane & 3) == 0) p.lse[row * p.heads + head] = sum > 0.f ? row_max[m][i] * p.scale + logf(sum) : -INFINITY;
            }
        if constexpr (SKIP) {
            if (block.threshold > -INFINITY && p.counters && threadIdx.x % S::kVoters == 0) {
                Counters& counters = p.counters[p.work[blockIdx.y].seq];
                atomicAdd(&counters.votes, static_cast<unsigned long long>(tile.row / kPage + 1));
                atomicAdd(&counters.skipped, static_cast<unsigned long long>(skipped));
            }
        }
    }
};

template <typename T, typename TO, int D, bool SKIP>
__device__ __forceinline__ void prefill_hopper(const AttnParams& p) {
    using S = HopperShape<D>;
    extern __shared__ __align__(1024) char smem[];
    __shared__ HopperBlock block;
    __shared__ __align__(8) uint64_t barriers[4 * S::kStages];
    const uint32_t sq = smem_addr(smem), slots = sq + S::kQBytes, full = smem_addr(barriers), empty = full + 2 * S::kStages * 8;
    const Work item = p.work[blockIdx.y];
    if (item.seq < 0) return;
    if constexpr (S::kTiles == 2) {
        // Tiles go in pairs counted from the sequence's last, so that the odd one out is the one with the fewest keys.
        const Seq seq = p.seqs[item.seq];
        if (((seq.q_start + seq.q_len - 1) / kPage - seq.q_start / kPage - item.tile) % 2) return;
    }
    if (threadIdx.x == 0) {
        describe(p, item, SKIP, S::kTiles, block);
        for (int i = 0; i < 2 * S::kStages; ++i) {
            mbarrier_init(full + i * 8, 128);
            mbarrier_init(empty + i * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int group = warp_uniform(threadIdx.x >> 7);
    if (group == 2) {
        fewer_registers<S::kLoaderRegisters>();
        load_tiles<D>(p, block, slots, full, empty);
    } else {
        more_registers<(504 - S::kLoaderRegisters) / 16 * 8>();
        const int thread = threadIdx.x & 127, lane = thread & 31;
        const HopperTile& tile = block.tile[S::kTiles == 2 ? group : 0];
        const int rows = 64 * S::kMt, first_row = S::kTiles == 2 ? 0 : group * 64;   // of the tile
        if (tile.end > 0) {
            constexpr int kChunks = D / 8;
            const char* q = static_cast<const char*>(p.q) + (tile.packed_row * p.q_stride + int64_t(blockIdx.x) * D) * 2;
            for (int i = thread; i < rows * kChunks; i += 128) {
                const int r = first_row + i / kChunks, chunk = i % kChunks;
                const bool live = r >= tile.first && r < tile.end;
                cp_async16_zfill(sq + (chunk / 8) * S::kRows * 128 + (group * rows + i / kChunks) * 128 + (((chunk & 7) ^ (r & 7)) << 4),
                                 q + (live ? r : tile.first) * p.q_stride * 2 + chunk * 16, live ? 16 : 0);
            }
            cp_async_commit();
            cp_async_wait<0>();
            fence_async_proxy();
            if (group == 0) named_barrier<3, 128>();
            else named_barrier<4, 128>();
            HopperRows<T, TO, D, SKIP> rows_of{p, block, tile, slots, full, empty, group, lane, first_row + (thread >> 5) * 16 + (lane >> 2), p.scale * 1.44269504088896340736f,
                                               matrix_at(sq + group * rows * 128, 1), bool(__any_sync(0xffffffffu, SKIP ? block.threshold > -INFINITY : p.n_seqs < 0)), block.threshold};
#pragma unroll
            for (int m = 0; m < S::kMt; ++m) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    // A row that does not exist has no say: under a maximum of +inf every tile is negligible. Nothing of it is ever written.
                    const int r = rows_of.my_row + m * 64 + i * 8;
                    rows_of.row_max[m][i] = SKIP && (r < tile.first || r >= tile.end) ? INFINITY : -INFINITY;
                    rows_of.row_sum[m][i] = 0.f;
                }
#pragma unroll
                for (int i = 0; i < D / 2; ++i) rows_of.o[m][i] = 0.f;
            }
            rows_of.all_tiles();
            rows_of.write();
        } else {
            // The lower tile of the pair does not exist: its slots are released as they come.
            for (int j = 0; j < block.last_key_tile; ++j)
                for (int value = 0; value < 2; ++value) {
                    const int slot = value * S::kStages + j % S::kStages;
                    mbarrier_wait(full + slot * 8, (j / S::kStages) & 1);
                    if (lane == 0) mbarrier_arrive(empty + slot * 8);
                }
        }
    }
}

}  // namespace skip

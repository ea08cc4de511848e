// A block of Hopper's prefill: which tiles it has, and the warpgroup that loads keys and values for it.
#pragma once
#include "launch.h"
#include "params.h"
#include "table.cuh"
#include "wgmma.cuh"

namespace skip {

template <int D>
struct HopperShape {
    static constexpr int kMt = D == 64 ? 2 : 1;                    // 64-row products of a warpgroup
    static constexpr int kRows = 2 * 64 * kMt;                     // rows of a block
    static constexpr int kTiles = kRows / kPage;                   // tiles of a block: each warpgroup has one, or both share it
    static constexpr int kPanels = D / 64;                         // swizzled panels of 64 dimensions
    static constexpr int kTileBytes = kPage * D * 2;
    static constexpr int kQBytes = kRows * D * 2;
    static constexpr int kStages = D == 64 ? 4 : 3;
    static constexpr int kLag = D == 64 ? 4 : 2;                   // tiles the loader asks for before it waits for the first
    static constexpr int kLoaderRegisters = D == 64 ? 40 : 24;     // the computing warpgroups share what is left
    static constexpr int kVoters = D == 64 ? 128 : 256;
    static_assert(kQBytes + 2 * kStages * kTileBytes == hopper_shared_bytes(D) && kRows == hopper_rows(D));
};

// One 128-row tile.
struct HopperTile {
    uint8_t* kept;
    int32_t row;          // absolute position of row 0
    int32_t first, end;   // rows that exist; end 0: no such tile
    int32_t packed_row;
};

struct HopperBlock {
    HopperTile tile[2];
    const int32_t* pages;
    int32_t kv_len;
    int32_t last_key_tile;
    float threshold;      // in units of q.k
};

__device__ __forceinline__ void describe(const AttnParams& p, Work item, bool skips, int tiles, HopperBlock& b) {
    const Seq seq = p.seqs[item.seq];
    const int first_tile = seq.q_start / kPage, q_tiles = (seq.q_start + seq.q_len - 1) / kPage - first_tile + 1;
    b.pages = p.block_tables + seq.pages;
    b.kv_len = seq.kv_len;
    b.last_key_tile = first_tile + item.tile;
    b.threshold = skips ? ln_lambda(p.tables, seq.table, seq.final_len) / p.scale : -INFINITY;
    for (int i = 0; i < tiles; ++i) {
        const int at = item.tile - (tiles - 1 - i);
        HopperTile& t = b.tile[i];
        t.row = (first_tile + at) * kPage;
        t.first = max(seq.q_start - t.row, 0);
        t.end = at < 0 ? 0 : min(seq.q_start + seq.q_len - t.row, kPage);
        t.packed_row = seq.row + t.row - seq.q_start;
        const int64_t k_tiles = (seq.kv_len + kPage - 1) / kPage;
        t.kept = p.kept ? p.kept + p.kept_offset[item.seq] + (int64_t(blockIdx.x) * q_tiles + at) * k_tiles : nullptr;
    }
}

// K and V of the key tiles in turns, each into the next slot of its ring.
template <int D>
__device__ __forceinline__ void load_tiles(const AttnParams& p, const HopperBlock& b, uint32_t slots, uint32_t full, uint32_t empty) {
    using S = HopperShape<D>;
    constexpr int kChunks = D / 8, kStep = 128 / kChunks, kLoads = kPage / kStep;
    const int thread = threadIdx.x & 127, row = thread / kChunks, chunk = thread % kChunks;
    const uint32_t dst = slots + (chunk / 8) * kPage * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
    const int64_t kv_head = blockIdx.x / (p.heads / p.kv_heads);
    const int items = 2 * (b.last_key_tile + 1);
    auto ring = [](int item) { return (item & 1) * S::kStages + (item >> 1) % S::kStages; };
    for (int item = 0; item < items + S::kLag; ++item) {
        if (item < items) {
            const int j = item >> 1, slot = ring(item);
            if (j >= S::kStages) mbarrier_wait(empty + slot * 8, (j / S::kStages - 1) & 1);
            const char* src = static_cast<const char*>(item & 1 ? p.v : p.k) + (int64_t(b.pages[j]) * p.kv_heads + kv_head) * S::kTileBytes + thread * 16;
            const int live = b.kv_len - j * kPage - row;
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
                cp_async16_zfill(dst + slot * S::kTileBytes + i * kStep * 128, src + i * 128 * 16, i * kStep < live ? 16 : 0);
        }
        cp_async_commit();
        if (item >= S::kLag) {
            cp_async_wait<S::kLag>();
            fence_async_proxy();
            mbarrier_arrive(full + ring(item - S::kLag) * 8);
        }
    }
}

}  // namespace skip

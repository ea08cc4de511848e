// What a host gives each kernel: threads, grid, dynamic shared memory, workspace. Plain arithmetic, to be repeated on the other side.
//
// Architecture is that of the machine code loaded: `roomy` from sm_90 on (227 KB of shared memory a block), else 163 KB (sm_80, sm_87).
//
//   attn_prefill_*_{dense,skip,measure}_mma   prefill_threads(d), grid (heads, work entries), prefill_shared_bytes(d)
//   attn_prefill_*_{dense,skip}_wgmma         sm_90a, d 64 and 128, no window: kHopperThreads, grid as above, hopper_shared_bytes(d)
//   attn_decode_*_<kernel>                    decode_threads(kernel, d, roomy), grid (blocks), decode_shared_bytes(kernel, d, roomy);
//                                             measure as dense
//
// A decode step is dense alone where no sequence skips; else one that skips (`skip`, or `scan` and then `gather`) and, where some sequence
// does not, `guarded`. Blocks: as many as the device has multiprocessors, at most decode_max_blocks(roomy), the same number throughout a step;
// the blocks of `skip` wait for one another, so no more than fit at once. At most kMaxSegments sequences x KV heads a launch. The workspace is
// decode_workspace_bytes(), zeroed once: counters return to zero by themselves, nothing else in it is expected to hold any value. The gather
// may be launched so that it starts before the scan ends (programmatic stream serialisation): it waits by itself.
//
// Sequences with q_len 0 or kv_len 0 are passed over: their rows are left as they were. Work entries with sequence -1 are nothing to do.
#pragma once
#include <cstdint>

#include "params.h"

#ifdef __CUDACC__
#define SKIP_BOTH __host__ __device__
#else
#define SKIP_BOTH
#endif

namespace skip {

constexpr int kHeads = 8;            // heads a KV group at most
constexpr int kMaxSegments = 1024;   // sequences x KV heads of a launch
SKIP_BOTH constexpr int decode_max_blocks(bool roomy) { return roomy ? 192 : 128; }

SKIP_BOTH constexpr int prefill_threads(int d) { return d == 64 ? 128 : 256; }
// Q and two stages of K and V; at d = 128, where two halves of keys are worked on apart, their maxima; at d = 256 Q and three half tiles of K or V.
SKIP_BOTH constexpr int prefill_shared_bytes(int d) { return (d == 256 ? 5 : 10) * kPage * d + (d == 128 ? 3 * kPage * 4 : 0); }

// Hopper's: one warpgroup that loads, two that compute; query rows a block (two of Work's tiles at d = 64); Q and the rings of K and of V.
constexpr int kHopperThreads = 384;
SKIP_BOTH constexpr int hopper_rows(int d) { return d == 64 ? 256 : 128; }
SKIP_BOTH constexpr int hopper_shared_bytes(int d) { return hopper_rows(d) * d * 2 + (d == 64 ? 8 : 6) * kPage * d * 2; }

enum class Decode { kDense, kGuarded, kScan, kGather, kSkip };

SKIP_BOTH constexpr bool decode_reads_both(Decode kernel) { return kernel == Decode::kDense || kernel == Decode::kGuarded; }
// Where a run is half as much to load, one warp a scheduler is too slow for it.
SKIP_BOTH constexpr int decode_warps(Decode kernel, int d, bool roomy) { return decode_reads_both(kernel) || d == 256 || !roomy ? 4 : 8; }
SKIP_BOTH constexpr int decode_threads(Decode kernel, int d, bool roomy) { return 32 * decode_warps(kernel, d, roomy); }
// Keys a stage of a warp's ring: a run; where K and V are read together, what makes 16 KB: smaller stages wait for their own instructions,
// and larger ones would leave no room for a second.
SKIP_BOTH constexpr int decode_stage_keys(Decode kernel, int d) { return decode_reads_both(kernel) ? kRun * 128 / d : kRun; }
// Where survivors are gathered, a run's scores (512 bytes) and maxima (32) lie beside its values.
SKIP_BOTH constexpr int decode_stage_bytes(Decode kernel, int d) {
    return decode_stage_keys(kernel, d) * d * 2 * (decode_reads_both(kernel) ? 2 : 1) + (kernel == Decode::kGather || kernel == Decode::kSkip ? 640 : 0);
}
SKIP_BOTH constexpr int decode_stages(Decode kernel, int d, bool roomy) {
    const int room = !roomy ? 136 << 10 : kernel == Decode::kSkip ? 207 << 10 : 192 << 10;
    const int fit = room / (decode_warps(kernel, d, roomy) * decode_stage_bytes(kernel, d));
    return fit > 8 ? 8 : fit;
}
SKIP_BOTH constexpr int decode_shared_bytes(Decode kernel, int d, bool roomy) {
    return decode_stages(kernel, d, roomy) * decode_stage_bytes(kernel, d) * decode_warps(kernel, d, roomy);
}

// The decode workspace, in bytes from its start. `segments` = sequences x KV heads, `max_runs` = AttnParams::max_runs, runs of 32 keys of the
// longest sequence the launch may meet. Partial sums first: a slot for each (segment, block) pair that meets, at index segment + block.
struct DecodeLayout {
    int64_t stats, scores, run_max, lists, tops, counts, arrivals, scanned, peaks, end;
    SKIP_BOTH constexpr DecodeLayout(int64_t segments, int64_t blocks, int64_t max_runs, int d)
        : stats((segments + blocks) * kHeads * d * 4),
          scores(stats + (segments + blocks) * kHeads * 2 * 4),
          run_max(scores + segments * max_runs * 512),
          lists(run_max + segments * max_runs * kHeads * 4),
          tops(lists + (segments * max_runs * 4 + 15) / 16 * 16),
          counts(tops + segments * kHeads * 4),
          arrivals(counts + segments * 4),
          scanned(arrivals + 2 * segments * 4),
          peaks((scanned + segments * 4 + 15) / 16 * 16),
          end(peaks + segments * kHeads * 4) {}
};
// The dense and guarded kernels use partial sums and counters alone, but find them by the same layout (max_runs may then be 0).
SKIP_BOTH constexpr int64_t decode_workspace_bytes(int64_t segments, int64_t blocks, int64_t max_runs, int d) {
    return DecodeLayout(segments, blocks, max_runs, d).end;
}

}  // namespace skip

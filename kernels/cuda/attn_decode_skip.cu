// Skipping decode in one launch: every block scores its share of the keys, learns each row's true maximum from the others, votes over its
// own runs and reads the values of survivors.
//
// A segment's pages are dealt out 16 apart, so that a block's share samples the whole sequence: survivors crowd at its ends. Maxima meet in
// one word a head (an ordered integer, so that the order of arrival cannot matter); it bounds the true maximum from below at any time, so
// a warp that has scored its share asks for values of likely survivors before the rest has. Only the last word is voted on.
// All blocks must fit on the device at once: they wait for one another.
#include "common/decode_merge.cuh"
#include "common/decode_run.cuh"
#include "common/decode_shares.cuh"
#include "common/launch.h"
#include "common/mma.cuh"
#include "common/params.h"
#include "common/table.cuh"

namespace skip {

// Unsigned integers that order as the floats do; 0 is below them all.
__device__ __forceinline__ uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t x) {
    return x == 0 ? -INFINITY : __uint_as_float(x >> 31 ? x & 0x7fffffffu : ~x);
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* at) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

// Units of a segment: its runs, page by page, the pages in columns of kSpread; a unit may lie beyond the last run.
constexpr int kSpread = 16, kPageRuns = kPage / kRun;
__device__ __forceinline__ int spread_rows(int runs) { return (runs + kSpread * kPageRuns - 1) / (kSpread * kPageRuns); }
__device__ __forceinline__ int spread_units(int runs) { return spread_rows(runs) * kSpread * kPageRuns; }
__device__ __forceinline__ int spread_run(int unit, int runs) {
    const int rows = spread_rows(runs), page = unit / kPageRuns;
    return (page % rows * kSpread + page / rows) * kPageRuns + unit % kPageRuns;
}

template <typename T, typename TO, int D>
__device__ __forceinline__ void decode_skip(const AttnParams& p) {
    constexpr int kWarps = decode_warps(Decode::kSkip, D, kRoomy);
    constexpr int kRunBytes = kRun * D * 2, kStages = decode_stages(Decode::kSkip, D, kRoomy), kStageBytes = decode_stage_bytes(Decode::kSkip, D);
    constexpr int kRing = kStages * kStageBytes * kWarps;
    static_assert(kStages > 0 && kRing >= decode_max_blocks(kRoomy) * (64 + 256));
    extern __shared__ __align__(128) char ring[];
    __shared__ __align__(16) float merge[kMergeFloats<D, kWarps>];
    struct Stage {
        int run, unit, segment;  // of values: segment + kValues
    };
    constexpr int kValues = 1 << 20;
    __shared__ Stage s_stage[kWarps][8];
    __shared__ float s_threshold[kMaxSegments];                         // in units of q.k
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, segments = p.n_seqs * p.kv_heads, group = p.heads / p.kv_heads;
    const uint32_t my_ring = smem_addr(ring) + warp * kStages * kStageBytes;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const DecodeLayout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);
    uint32_t* peaks = reinterpret_cast<uint32_t*>(ws + layout.peaks);
    unsigned* scanned = reinterpret_cast<unsigned*>(ws + layout.scanned);

    // Cold otherwise, and asked for only once the sequences are there.
    if (p.tables && threadIdx.x < (sizeof(Table) + 127) / 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(p.tables) + threadIdx.x * 128));
    const Shares shares = share_out<kWarps>(segments, [&](int s) {
        const Seq& seq = p.seqs[s / p.kv_heads];
        const float threshold = p.window == 0 ? ln_lambda(p.tables, seq.table, seq.final_len) / p.scale : -INFINITY;
        s_threshold[s] = threshold;
        return threshold > -INFINITY ? spread_units(stages_of<kRun>(p, seq)) : 0;
    });
    if (shares.begin >= shares.end) return;
    const int first_segment = shares.segment_of(shares.begin);

    // Loads run ahead of the computation, across segments and from the keys on to the values; addresses are worked out up to 32 units at a
    // time, one a lane.
    int next = shares.begin + warp, ahead_segment = first_segment, in_batch = 0, batch = 0, my_run, my_live, my_segment;
    int filled = 0, used = 0, staged = 0;
    int scored = next;  // the warp's units before it have their maxima written
    bool values = false;
    int least = 8;          // units worth a look; any, once all are scored
    int64_t my_at;
    // False where no unit is left, or none whose maximum is known.
    auto look_ahead = [&] {
        if (!values && next >= shares.end) {
            values = true;
            next = shares.begin + warp;
            ahead_segment = first_segment;
        }
        const int until = values ? min(scored, shares.end) : shares.end;
        batch = min((until - next + kWarps - 1) / kWarps, 32);
        in_batch = 0;
        if (batch < (values ? least : 1)) {
            batch = 0;
            return false;
        }
        const int unit = next + lane * kWarps;
        next += batch * kWarps;
        my_run = -1;
        if (lane < batch) {
#pragma unroll 1
            while (unit >= shares.first[ahead_segment + 1]) ++ahead_segment;
            const Seq seq = p.seqs[ahead_segment / p.kv_heads];
            const int runs = stages_of<kRun>(p, seq), run = spread_run(unit - shares.first[ahead_segment], runs);
            my_segment = ahead_segment;
            bool likely = run < runs;
            if (likely && values) {
                const float threshold = s_threshold[my_segment];
                const float4* top = reinterpret_cast<const float4*>(ws + layout.run_max + (int64_t(my_segment) * p.max_runs + run) * kHeads * 4);
                const uint4* peak = reinterpret_cast<const uint4*>(peaks + my_segment * kHeads);
                const float4 x[2] = {__ldcg(top), __ldcg(top + 1)};
                const uint4 y[2] = {__ldcg(peak), __ldcg(peak + 1)};
                likely = false;
#pragma unroll
                for (int h = 0; h < kHeads; ++h)
                    likely |= h < group && !(reinterpret_cast<const float*>(x)[h] - from_ordered(reinterpret_cast<const uint32_t*>(y)[h]) < threshold);
            }
            if (likely) {
                my_run = run;
                my_live = min(seq.kv_len - run * kRun, kRun);
                my_at = stage_offset<D, kRun>(p, seq, my_segment % p.kv_heads, run);
            }
        }
        return true;
    };
    // Fills one stage, if there is anything to fill it with now.
    auto prefetch = [&] {
        int run = -1;
        do {
            if (in_batch >= batch && !look_ahead()) return false;
            run = __shfl_sync(0xffffffffu, my_run, in_batch);
            ++in_batch;
        } while (run < 0);
        const int live = __shfl_sync(0xffffffffu, my_live, in_batch - 1), segment = __shfl_sync(0xffffffffu, my_segment, in_batch - 1);
        const int64_t at = __shfl_sync(0xffffffffu, my_at, in_batch - 1);
        const uint32_t dst = my_ring + filled * kStageBytes;
        if (values) {
            stage_run<D, kRun, true>(dst, static_cast<const char*>(p.v) + at, lane, live);
            const int64_t from = int64_t(segment) * p.max_runs + run;
            if ((lane & 3) * 2 < group) cp_async16(dst + kRunBytes + lane * 16, ws + layout.scores + from * 512 + lane * 16);
            if (lane < 2) cp_async16(dst + kRunBytes + 512 + lane * 16, ws + layout.run_max + (from * kHeads + lane * 4) * 4);
        } else {
            stage_run<D, kRun, false>(dst, static_cast<const char*>(p.k) + at, lane, live);
        }
        if (lane == 0) s_stage[warp][filled] = {run, next - (batch - in_batch + 1) * kWarps, segment + (values ? kValues : 0)};
        filled = filled + 1 == kStages ? 0 : filled + 1;
        ++staged;
        cp_async_commit();
        return true;
    };
    // The run of the next stage if it is of this segment, or -1.
    auto take = [&](int segment) {
        __syncwarp();
        if (staged == 0 || s_stage[warp][used].segment != segment) return -1;
        if (staged == kStages)
            cp_async_wait<kStages - 1>();
        else
            cp_async_wait<0>();
        __syncwarp();
        --staged;
        return s_stage[warp][used].run;
    };

    auto forget = [&](int segment) {  // for the next launch
        if (threadIdx.x < kHeads) peaks[segment * kHeads + threadIdx.x] = 0;
        if (threadIdx.x == 0) scanned[segment] = 0;
    };
    Meeting ends[2] = {{-1, 0, 0}, {-1, 0, 0}};
    // Both phases go through the same code: once-run code costs more in instruction fetches than in work.
#pragma unroll 1
    for (int phase = 0; phase < 2; ++phase) {
        const bool gather = phase == 1;
#pragma unroll 1
        for (int segment = first_segment; segment < segments && shares.first[segment] < shares.end; ++segment) {
            if (shares.units(segment) == 0) continue;
            const Seq seq = p.seqs[segment / p.kv_heads];
            const Meeting meeting = shares.meeting(segment);
            uint8_t* kept = p.kept ? p.kept + p.kept_offset[segment / p.kv_heads] + int64_t(segment % p.kv_heads) * stages_of<kRun>(p, seq) : nullptr;
            const float threshold = s_threshold[segment];
            float top[2] = {-INFINITY, -INFINITY};
            uint4 q[D / 32];
            Sums<D> sums;
            if (gather)
                sums.clear();
            else
                load_q<D>(q, query_of<D>(p, seq, segment % p.kv_heads), group, lane);
            auto publish = [&] {
                if (lane < 4) {
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        if (2 * lane + h < group) atomicMax(peaks + segment * kHeads + 2 * lane + h, ordered(top[h]));
                }
            };
            int runs = 0;  // scored, or survivors
            bool known = false;
#pragma unroll 1
            for (;;) {
#pragma unroll 1
                while (staged < kStages && prefetch()) {
                }
                const int run = take(segment + (gather ? kValues : 0));
                if (run < 0) break;
                const uint32_t stage = my_ring + used * kStageBytes;
                if (!gather) scored = s_stage[warp][used].unit + kWarps;
                used = used + 1 == kStages ? 0 : used + 1;
                float s[2][4];
                if (!gather) {
                    float now[2];
                    KRun<D, 2> k;
                    k.read(stage, lane);
                    scores<T, D>(s, k, q, lane, min(seq.kv_len - run * kRun, kRun));
                    run_maximum(now, s);
                    const bool higher = now[0] > top[0] || now[1] > top[1];
                    top[0] = fmaxf(top[0], now[0]);
                    top[1] = fmaxf(top[1], now[1]);
                    const int64_t at = int64_t(segment) * p.max_runs + run;
                    if (lane < 4) *reinterpret_cast<float2*>(ws + layout.run_max + (at * kHeads + 2 * lane) * 4) = make_float2(now[0], now[1]);
                    if ((lane & 3) * 2 < group) {
                        uint32_t w[4];
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int i = 0; i < 2; ++i) w[m * 2 + i] = pack2<__half>((s[m][2 * i] - now[0]) * scale_log2, (s[m][2 * i + 1] - now[1]) * scale_log2);
                        *reinterpret_cast<uint4*>(ws + layout.scores + at * 512 + lane * 16) = make_uint4(w[0], w[1], w[2], w[3]);
                    }
                    if (kept && lane == 0) kept[run] = 0;
                    // At runs 0, 1, 3, 7 and so on, as far as it says anything new.
                    if (higher && (runs & (runs + 1)) == 0) publish();
                    ++runs;
                } else {
                    if (!known) {
                        if (lane == 0) {
                            while (load_acquire(scanned + segment) < unsigned(meeting.parts * kWarps)) {
                            }
                        }
                        __syncwarp();
                        const uint2 peak = __ldcg(reinterpret_cast<const uint2*>(peaks + segment * kHeads) + (lane & 3));
                        top[0] = from_ordered(peak.x), top[1] = from_ordered(peak.y);
                        known = true;
                    }
                    const int head = (lane & 3) * 2;
                    float shift[2];
                    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(shift[0]), "=f"(shift[1]) : "r"(stage + kRunBytes + 512 + (lane & 3) * 8));
                    shift[0] -= top[0];
                    shift[1] -= top[1];
                    if (__any_sync(0xffffffffu, (head < group && !(shift[0] < threshold)) || (head + 1 < group && !(shift[1] < threshold)))) {
                        // Heads the group lacks have no scores: weight 0.
                        const uint4 x = head < group ? load_shared(stage + kRunBytes + lane * 16) : make_uint4(0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u);
                        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
                        const float add[2] = {head < group ? shift[0] * scale_log2 : 0.f, head + 1 < group ? shift[1] * scale_log2 : -INFINITY};
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w[m * 2 + e]));
                                s[m][2 * e] = exp2_approx(f.x + add[0]);
                                s[m][2 * e + 1] = exp2_approx(f.y + add[1]);
                            }
                        sums.template add<T>(s, stage, lane);
                        if (kept && lane == 0) kept[run] = 1;
                        ++runs;
                    }
                }
                __syncwarp();
            }
            if (!gather) {
                publish();
                __syncwarp();
                if (lane == 0) {
                    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(scanned + segment) : "memory");
                }
                if (p.counters && lane == 0 && runs > 0) {  // survivors are taken off again below
                    atomicAdd(&p.counters[segment / p.kv_heads].votes, static_cast<unsigned long long>(runs));
                    atomicAdd(&p.counters[segment / p.kv_heads].skipped, static_cast<unsigned long long>(runs));
                }
            } else {
                if (p.counters && lane == 0 && runs > 0) atomicAdd(&p.counters[segment / p.kv_heads].skipped, static_cast<unsigned long long>(-static_cast<long long>(runs)));
                ends[1] = meeting;
                if (ends[0].segment < 0) ends[0] = meeting;
                write_part<TO, D, kWarps>(p, meeting, seq.row, sums, top, merge);
                if (meeting.parts == 1) forget(segment);
            }
        }
        // Units beyond the last run have nothing to score.
        scored = shares.end;
        least = 1;
        __syncwarp();
    }
    cp_async_wait<0>();
    if (ends[0].segment >= 0) arrive<TO, D, kWarps>(p, ends, 1, ring, kRing, forget);
}

}  // namespace skip

#define DECODE_SKIP(NAME, T, TO, D)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(skip::decode_threads(skip::Decode::kSkip, D, skip::kRoomy), 1) attn_decode_##NAME##_d##D##_skip(const __grid_constant__ skip::AttnParams p) { \
        skip::decode_skip<T, TO, D>(p);                                                                                                                    \
    }
#define DECODE_SKIP_ALL(NAME, T, TO) DECODE_SKIP(NAME, T, TO, 64) DECODE_SKIP(NAME, T, TO, 128) DECODE_SKIP(NAME, T, TO, 256)
DECODE_SKIP_ALL(bf16, __nv_bfloat16, __nv_bfloat16)
DECODE_SKIP_ALL(fp16, __half, __half)
DECODE_SKIP_ALL(fp16bf16, __half, __nv_bfloat16)

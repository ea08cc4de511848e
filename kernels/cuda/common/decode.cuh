// One block's share of a decode kernel: the loop that attn_decode.cu describes.
#pragma once
#include "decode_merge.cuh"
#include "decode_run.cuh"
#include "decode_shares.cuh"
#include "decode_vote.cuh"
#include "launch.h"
#include "mma.cuh"
#include "params.h"
#include "table.cuh"

namespace skip {

__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename T, typename TO, int D, Decode MODE>
__device__ __forceinline__ void decode(const AttnParams& p) {
    constexpr int kWarps = decode_warps(MODE, D, kRoomy);
    constexpr bool kReadsK = MODE != Decode::kGather, kReadsV = MODE != Decode::kScan;
    constexpr int kKeys = decode_stage_keys(MODE, D), kM = kKeys / 16, kRunBytes = kKeys * D * 2;
    constexpr int kStages = decode_stages(MODE, D, kRoomy), kStageBytes = decode_stage_bytes(MODE, D);
    constexpr int kRing = kStages * kStageBytes * kWarps;
    static_assert(kStages > 0 && kRing >= decode_max_blocks(kRoomy) * (64 + 256));
    extern __shared__ __align__(128) char ring[];
    __shared__ __align__(16) float merge[kReadsV ? kMergeFloats<D, kWarps> : 4];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, segments = p.n_seqs * p.kv_heads, group = p.heads / p.kv_heads;
    const uint32_t my_ring = smem_addr(ring) + warp * kStages * kStageBytes;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const DecodeLayout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);

    // In the guarded kernel shares are those of the dense one, so that its sums are too; segments that skip are passed over.
    auto skips = [&](int s) { return p.window == 0 && ln_lambda(p.tables, p.seqs[s / p.kv_heads].table, p.seqs[s / p.kv_heads].final_len) > -INFINITY; };
    if constexpr (MODE == Decode::kScan) let_next_grid_start();
    if constexpr (MODE == Decode::kGather) wait_for_previous_grid();
    const Shares shares = share_out<kWarps>(segments, [&](int s) {
        if constexpr (MODE == Decode::kGather) return __ldcg(reinterpret_cast<const int*>(ws + layout.counts) + s);
        if constexpr (MODE == Decode::kScan) {
            const int runs = skips(s) ? stages_of<kKeys>(p, p.seqs[s / p.kv_heads]) : 0;
            if (runs == 0 && blockIdx.x == 0) reinterpret_cast<int*>(ws + layout.counts)[s] = 0;
            return runs;
        }
        return stages_of<kKeys>(p, p.seqs[s / p.kv_heads]);
    });
    if (shares.begin >= shares.end) return;
    int segment = shares.segment_of(shares.begin);

    // The load cursor runs ahead of the computation, across segments. Addresses are worked out 32 runs at a time, one a lane, so that
    // their chain of lookups (list, block table) is waited for once and not once a run.
    __shared__ int s_run[kWarps][8];  // run in each stage
    int next = shares.begin + warp, ahead_segment = segment, in_batch = 32, filled = 0, my_run = -1, my_live = 0;
    int64_t my_at = 0, my_scores = 0;
    auto look_ahead = [&] {
        const int unit = next + lane * kWarps;
        my_run = -1;
        if (unit < shares.end) {
            while (unit >= shares.first[ahead_segment + 1]) ++ahead_segment;
            if (MODE != Decode::kGuarded || !skips(ahead_segment)) {
                const Seq seq = p.seqs[ahead_segment / p.kv_heads];
                my_run = unit - shares.first[ahead_segment] + first_stage<kKeys>(p, seq);
                if constexpr (MODE == Decode::kGather) {
                    my_run = __ldcg(reinterpret_cast<const int*>(ws + layout.lists) + int64_t(ahead_segment) * p.max_runs + my_run);
                    my_scores = int64_t(ahead_segment) * p.max_runs + my_run;
                }
                my_live = min(seq.kv_len - my_run * kKeys, kKeys);
                my_at = stage_offset<D, kKeys>(p, seq, ahead_segment % p.kv_heads, my_run);
            }
        }
        next += 32 * kWarps;
        in_batch = 0;
    };
    auto prefetch = [&] {
        int run = -1;
        for (;;) {
            if (in_batch == 32) {
                if (next >= shares.end) break;
                look_ahead();
            }
            run = __shfl_sync(0xffffffffu, my_run, in_batch);
            ++in_batch;
            if (run >= 0) break;
        }
        if (run >= 0) {
            const int live = __shfl_sync(0xffffffffu, my_live, in_batch - 1);
            const int64_t at = __shfl_sync(0xffffffffu, my_at, in_batch - 1);
            const uint32_t dst = my_ring + filled * kStageBytes;
            if constexpr (kReadsK) stage_run<D, kKeys, false>(dst, static_cast<const char*>(p.k) + at, lane, live);
            if constexpr (kReadsV) stage_run<D, kKeys, true>(dst + (kReadsK ? kRunBytes : 0), static_cast<const char*>(p.v) + at, lane, live);
            if constexpr (MODE == Decode::kGather) {
                const int64_t from = __shfl_sync(0xffffffffu, my_scores, in_batch - 1);
                if ((lane & 3) * 2 < group) cp_async16(dst + kRunBytes + lane * 16, ws + layout.scores + from * 512 + lane * 16);
                if (lane < 2) cp_async16(dst + kRunBytes + 512 + lane * 16, ws + layout.run_max + (from * kHeads + lane * 4) * 4);
            }
            if (lane == 0) s_run[warp][filled] = run;
            filled = filled + 1 == kStages ? 0 : filled + 1;
        }
        cp_async_commit();
    };
    Meeting ends[2] = {{-1, 0, 0}, {-1, 0, 0}};  // the first and the last segment this block has a part of
    int unit = shares.begin + warp, used = 0, want = kStages;  // prefetches due: the whole ring first, then one a run
    for (; segment < segments && shares.first[segment] < shares.end; ++segment) {
        const int until = min(shares.first[segment + 1], shares.end);
        if (shares.units(segment) == 0) continue;
        if (MODE == Decode::kGuarded && skips(segment)) {
            if (unit < until) unit += (until - unit + kWarps - 1) / kWarps * kWarps;
            continue;
        }
        const Seq seq = p.seqs[segment / p.kv_heads];
        const int kv_head = segment % p.kv_heads;
        const int from = p.window > 0 ? max(seq.kv_len - p.window, 0) : 0;
        uint4 q[D / 32];
        if constexpr (kReadsK) load_q<D>(q, query_of<D>(p, seq, kv_head), group, lane);
        Sums<D> sums;
        if constexpr (kReadsV) sums.clear();
        float top[2] = {-INFINITY, -INFINITY};
        if constexpr (MODE == Decode::kGather) {
            const float2 x = __ldcg(reinterpret_cast<const float2*>(ws + layout.tops) + segment * (kHeads / 2) + (lane & 3));
            top[0] = x.x, top[1] = x.y;
        }
        for (; unit < until; unit += kWarps) {
#pragma unroll 1
            for (; want > 0; --want) prefetch();
            want = 1;
            cp_async_wait<kStages - 1>();
            __syncwarp();
            const uint32_t stage = my_ring + used * kStageBytes;
            const int run = s_run[warp][used], live = min(seq.kv_len - run * kKeys, kKeys);
            used = used + 1 == kStages ? 0 : used + 1;
            float s[kM][4];
            if constexpr (kReadsK) {
                float now[2];
                KRun<D, kM> k;
                k.read(stage, lane);
                scores<T, D>(s, k, q, lane, live);
                if (run * kKeys < from) {
#pragma unroll
                    for (int m = 0; m < kM; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            if (run * kKeys + m * 16 + (e >> 1) * 8 + (lane >> 2) < from) s[m][e] = -INFINITY;
                }
                run_maximum(now, s);
                if constexpr (MODE == Decode::kScan) {
                    if (lane < 4) *reinterpret_cast<float2*>(ws + layout.run_max + ((int64_t(segment) * p.max_runs + run) * kHeads + 2 * lane) * 4) = make_float2(now[0], now[1]);
                    if ((lane & 3) * 2 < group) {
                        uint32_t w[4];
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int i = 0; i < 2; ++i) w[m * 2 + i] = pack2<__half>((s[m][2 * i] - now[0]) * scale_log2, (s[m][2 * i + 1] - now[1]) * scale_log2);
                        *reinterpret_cast<uint4*>(ws + layout.scores + (int64_t(segment) * p.max_runs + run) * 512 + lane * 16) = make_uint4(w[0], w[1], w[2], w[3]);
                    }
                } else {
                    float alpha[2], safe[2];
                    bool moved = false;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        now[h] = fmaxf(now[h], top[h]);
                        safe[h] = now[h] == -INFINITY ? 0.f : now[h] * scale_log2;
                        alpha[h] = exp2_approx(top[h] * scale_log2 - safe[h]);
                        moved |= alpha[h] != 1.f;
                        top[h] = now[h];
                    }
                    if (__any_sync(0xffffffffu, moved)) sums.scale(alpha);
#pragma unroll
                    for (int m = 0; m < kM; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e) s[m][e] = exp2_approx(fmaf(s[m][e], scale_log2, -safe[e & 1]));
                }
            } else {
                // Heads the group lacks have no scores: -inf, weight 0.
                const uint4 x = (lane & 3) * 2 < group ? load_shared(stage + kRunBytes + lane * 16) : make_uint4(0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u);
                const uint32_t w[4] = {x.x, x.y, x.z, x.w};
                float shift[2];
                asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(shift[0]), "=f"(shift[1]) : "r"(stage + kRunBytes + 512 + (lane & 3) * 8));
                shift[0] = (shift[0] - top[0]) * scale_log2;
                shift[1] = (shift[1] - top[1]) * scale_log2;
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w[m * 2 + e]));
                        s[m][2 * e] = exp2_approx(f.x + shift[0]);
                        s[m][2 * e + 1] = exp2_approx(f.y + shift[1]);
                    }
            }
            if constexpr (kReadsV) sums.template add<T>(s, stage + (kReadsK ? kRunBytes : 0), lane);
            __syncwarp();
        }
        if constexpr (kReadsV) {
            ends[1] = shares.meeting(segment);
            if (ends[0].segment < 0) ends[0] = ends[1];
            write_part<TO, D, kWarps>(p, ends[1], seq.row, sums, top, merge);
        } else {
            __shared__ int s_last;
            const int parts = shares.meeting(segment).parts;
            __syncthreads();
            if (threadIdx.x == 0) s_last = parts == 1 || arrive_at(reinterpret_cast<unsigned*>(ws + layout.arrivals) + segment, parts);
            __syncthreads();
            if (s_last) {
                vote<D, kWarps>(p, segment, seq, ln_lambda(p.tables, seq.table, seq.final_len));
            }
        }
    }
    if constexpr (kReadsV) {
        if (ends[0].segment >= 0) {
            cp_async_wait<0>();
            arrive<TO, D, kWarps>(p, ends, MODE == Decode::kGather ? 1 : 0, ring, kRing, [](int) {});
        }
    }
}

}  // namespace skip

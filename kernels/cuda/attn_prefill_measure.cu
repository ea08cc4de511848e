// Prefill that also measures: the dense kernel's output to the bit, and for each vote of 128 rows x 128 keys its gap and its mass.
//
// The keys are visited once more, to vote and weigh against the final maxima that the dense pass left. The running maximum does not depend on
// what is skipped (a skipped tile lies below it), so one pass gives the votes at every threshold.
#include "common/gaps.cuh"
#include "common/prefill.cuh"

namespace skip {

template <typename T, int D>
__device__ __forceinline__ void measure(const AttnParams& p, const float* tops) {
    constexpr int kThreads = prefill_threads(D), kWarps = kThreads / 32, kGroups = kPage / 16 / kWarps, kTileBytes = kPage * D * 2, kNt = kPage / 8;
    constexpr int kStages = D == 256 ? 1 : 2;  // of K, where the dense pass had its own
    extern __shared__ __align__(512) char smem[];
    __shared__ float s_gap[kWarps], s_mass[kWarps];
    const uint32_t sq = smem_addr(smem), sk = sq + kTileBytes;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.x, kv_head = head / (p.heads / p.kv_heads);
    const Work item = p.work[blockIdx.y];
    if (item.seq < 0 || p.window > 0) return;
    const Seq seq = p.seqs[item.seq];
    const int row0 = (seq.q_start / kPage + item.tile) * kPage, first = max(seq.q_start - row0, 0), end = min(seq.q_start + seq.q_len - row0, kPage);
    const int last = (row0 + end - 1) / kPage;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    load_tile<D, kThreads>(sq, static_cast<const char*>(p.q) + ((seq.row + row0 - seq.q_start) * p.q_stride + int64_t(head) * D) * 2, p.q_stride * 2, first, end);
    auto load = [&](int j) {
        if (j <= last)
            load_page<D, kThreads, kPage>(sk + j % kStages * kTileBytes, static_cast<const char*>(p.k) + (int64_t(p.block_tables[seq.pages + j]) * p.kv_heads + kv_head) * kTileBytes, seq.kv_len - j * kPage);
        cp_async_commit();
    };
    load(0);

    float running[kGroups][2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) running[g][0] = running[g][1] = -INFINITY;
#pragma unroll 1
    for (int j = 0; j <= last; ++j) {
        if (kStages == 2) load(j + 1);
        cp_async_wait<kStages - 1>();
        __syncthreads();
        float gap = -INFINITY, mass = 0.f;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int group = g * kWarps + warp, my_row = group * 16 + (lane >> 2);
            float s[kNt][4] = {};
#pragma unroll 1
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t a[4];
                ldmatrix_x4(a, (sq + tile_offset<D>(group * 16 + (lane & 15), lane >> 4)) ^ (kk << 5));
#pragma unroll
                for (int n = 0; n < kNt / 2; ++n) {
                    uint32_t b[4];
                    ldmatrix_x4(b, ((sk + j % kStages * kTileBytes + tile_offset<D>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1)) ^ (kk << 5)) + n * 16 * D * 2);
                    mma<T>(s[2 * n], a, b[0], b[1]);
                    mma<T>(s[2 * n + 1], a, b[2], b[3]);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = my_row + i * 8, pos = row0 + r;
                float top = -INFINITY;
#pragma unroll
                for (int n = 0; n < kNt; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& x = s[n][2 * i + e];
                        if (r < first || r >= end || j * kPage + n * 8 + (lane & 3) * 2 + e > pos) x = -INFINITY;
                        top = fmaxf(top, x);
                    }
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                if (top == -INFINITY) continue;
                gap = fmaxf(gap, top - running[g][i]);
                running[g][i] = fmaxf(running[g][i], top);
                const float from = tops[r] * scale_log2;
#pragma unroll
                for (int n = 0; n < kNt; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) mass += exp2_approx(fmaf(s[n][2 * i + e], scale_log2, -from));
            }
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            gap = fmaxf(gap, __shfl_xor_sync(0xffffffffu, gap, d));
            mass += __shfl_xor_sync(0xffffffffu, mass, d);
        }
        if (lane == 0) s_gap[warp] = gap, s_mass[warp] = mass;
        __syncthreads();
        if (kStages == 1) load(j + 1);
        if (threadIdx.x == 0) {
            double all = 0;
            for (int w = 0; w < kWarps; ++w) gap = fmaxf(gap, s_gap[w]), all += s_mass[w];
            add_vote(p.gaps[2 * item.seq], gap * p.scale, all);
        }
    }
}

}  // namespace skip

#define MEASURE(NAME, T, TO, D, WARPS, MT)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attn_prefill_##NAME##_d##D##_measure_mma(const __grid_constant__ skip::AttnParams p) { \
        __shared__ float tops[skip::kPage];                                                                                                        \
        skip::prefill<T, TO, D, WARPS, MT, false, true>(p, tops);                                                                                  \
        skip::cp_async_wait<0>();                                                                                                                  \
        __syncthreads();                                                                                                                           \
        skip::measure<T, D>(p, tops);                                                                                                              \
    }
#define MEASURE_ALL(NAME, T, TO)      \
    MEASURE(NAME, T, TO, 64, 4, 2)    \
    MEASURE(NAME, T, TO, 128, 8, 2)   \
    MEASURE(NAME, T, TO, 256, 8, 1)
MEASURE_ALL(bf16, __nv_bfloat16, __nv_bfloat16)
MEASURE_ALL(fp16, __half, __half)
MEASURE_ALL(fp16bf16, __half, __nv_bfloat16)

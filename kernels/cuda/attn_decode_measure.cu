// Decode that also measures: the dense kernel's output to the bit, and two histograms of votes: runs of 32 keys against the row's true maximum
// (what the skipping kernels do), and pages of 128 keys, ascending, against a running maximum (the reference documentation's).
//
// Every key is scored once more; the last block to finish a segment tallies it from the runs' maxima and sums. Not a fast path.
#include "common/decode.cuh"
#include "common/gaps.cuh"

namespace skip {

constexpr int kMeasureWarps = decode_warps(Decode::kDense, 0, kRoomy);

// Mass of a run whose heads have maxima `m` and sums `l`, relative to the rows' maxima; its gap in units of q.k.
__device__ __forceinline__ float weigh(const float* m, const float* l, const float* top, int group, float scale_log2, float& gap) {
    float mass = 0.f;
    gap = -INFINITY;
    for (int h = 0; h < group; ++h) {
        gap = fmaxf(gap, m[h] - top[h]);
        mass += l[h] * exp2_approx((m[h] - top[h]) * scale_log2);
    }
    return mass;
}

// Every thread of the block.
template <int D>
__device__ void tally(const AttnParams& p, int segment, int runs) {
    __shared__ float s_top[kMeasureWarps * 32][kHeads];
    const int group = p.heads / p.kv_heads, pages = (runs + kPage / kRun - 1) / (kPage / kRun), each = (pages + kMeasureWarps * 32 - 1) / kMeasureWarps * 32;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const DecodeLayout layout = layout_of(p, D);
    const char* ws = static_cast<const char*>(p.workspace);
    const float* maxima = reinterpret_cast<const float*>(ws + layout.run_max) + int64_t(segment) * p.max_runs * kHeads;
    const float* sums = reinterpret_cast<const float*>(ws + layout.scores + int64_t(segment) * p.max_runs * 512);
    auto read = [&](float (&m)[kHeads], float (&l)[kHeads], int run) {
        for (int h = 0; h < kHeads; ++h) m[h] = __ldcg(maxima + run * kHeads + h), l[h] = __ldcg(sums + run * 128 + h);
    };
    // A thread takes a stretch of pages: its maximum first, then the maxima of the stretches before it.
    const int first = min(int(threadIdx.x) * each, pages), last = min(first + each, pages);
    float m[kHeads], l[kHeads], top[kHeads], before[kHeads];
    for (int h = 0; h < kHeads; ++h) top[h] = before[h] = -INFINITY;
    for (int run = first * (kPage / kRun); run < min(last * (kPage / kRun), runs); ++run) {
        read(m, l, run);
        for (int h = 0; h < kHeads; ++h) top[h] = fmaxf(top[h], m[h]);
    }
    for (int h = 0; h < kHeads; ++h) s_top[threadIdx.x][h] = top[h];
    __syncthreads();
    for (int h = 0; h < kHeads; ++h) top[h] = -INFINITY;
    for (int t = 0; t < kMeasureWarps * 32; ++t)
        for (int h = 0; h < kHeads; ++h) {
            if (t == int(threadIdx.x)) before[h] = top[h];
            top[h] = fmaxf(top[h], s_top[t][h]);
        }
    GapHistogram* to = p.gaps + 2 * (segment / p.kv_heads);
    for (int page = first; page < last; ++page) {
        float highest[kHeads], page_mass = 0.f, page_gap = -INFINITY, gap;
        for (int h = 0; h < kHeads; ++h) highest[h] = -INFINITY;
        for (int run = page * (kPage / kRun); run < min((page + 1) * (kPage / kRun), runs); ++run) {
            read(m, l, run);
            const float mass = weigh(m, l, top, group, scale_log2, gap);
            add_vote(to[0], gap * p.scale, mass);
            page_mass += mass;
            for (int h = 0; h < kHeads; ++h) highest[h] = fmaxf(highest[h], m[h]);
        }
        for (int h = 0; h < group; ++h) {
            page_gap = fmaxf(page_gap, highest[h] - before[h]);
            before[h] = fmaxf(before[h], highest[h]);
        }
        add_vote(to[1], page_gap * p.scale, page_mass);
    }
    __syncthreads();
}

template <typename T, int D>
__device__ __forceinline__ void measure(const AttnParams& p) {
    extern __shared__ __align__(128) char ring[];
    __shared__ int s_last;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = p.heads / p.kv_heads;
    const uint32_t stage = smem_addr(ring) + warp * kRun * D * 2;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const DecodeLayout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);
    if (p.window > 0) return;
    const Shares shares = share_out<kMeasureWarps>(p.n_seqs * p.kv_heads, [&](int s) { return stages_of<kRun>(p, p.seqs[s / p.kv_heads]); });
    if (shares.begin >= shares.end) return;
    for (int segment = shares.segment_of(shares.begin); segment < shares.segments && shares.first[segment] < shares.end; ++segment) {
        if (shares.units(segment) == 0) continue;
        const Seq seq = p.seqs[segment / p.kv_heads];
        uint4 q[D / 32];
        load_q<D>(q, query_of<D>(p, seq, segment % p.kv_heads), group, lane);
        for (int unit = max(shares.begin, shares.first[segment]) + warp; unit < min(shares.end, shares.first[segment + 1]); unit += kMeasureWarps) {
            const int run = unit - shares.first[segment], live = min(seq.kv_len - run * kRun, kRun);
            __syncwarp();
            stage_run<D, kRun, false>(stage, static_cast<const char*>(p.k) + stage_offset<D, kRun>(p, seq, segment % p.kv_heads, run), lane, live);
            cp_async_commit();
            cp_async_wait<0>();
            __syncwarp();
            KRun<D, 2> k;
            float s[2][4], top[2], sum[2] = {0.f, 0.f};
            k.read(stage, lane);
            scores<T, D>(s, k, q, lane, live);
            run_maximum(top, s);
            for (int m = 0; m < 2; ++m)
                for (int e = 0; e < 4; ++e) sum[e & 1] += exp2_approx((s[m][e] - top[e & 1]) * scale_log2);
            for (int h = 0; h < 2; ++h)
                for (int d = 4; d < 32; d *= 2) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], d);
            const int64_t at = int64_t(segment) * p.max_runs + run;
            if (lane < 4) {
                *reinterpret_cast<float2*>(ws + layout.run_max + (at * kHeads + 2 * lane) * 4) = make_float2(top[0], top[1]);
                *reinterpret_cast<float2*>(ws + layout.scores + at * 512 + lane * 8) = make_float2(sum[0], sum[1]);
            }
        }
        const int parts = shares.meeting(segment).parts;
        __syncthreads();
        if (threadIdx.x == 0) s_last = parts == 1 || arrive_at(reinterpret_cast<unsigned*>(ws + layout.arrivals) + p.n_seqs * p.kv_heads + segment, parts);
        __syncthreads();
        if (s_last) tally<D>(p, segment, stages_of<kRun>(p, seq));
    }
}

}  // namespace skip

#define MEASURE(NAME, T, TO, D)                                                                                                                               \
    extern "C" __global__ void __launch_bounds__(skip::kMeasureWarps * 32, 1) attn_decode_##NAME##_d##D##_measure(const __grid_constant__ skip::AttnParams p) { \
        skip::decode<T, TO, D, skip::Decode::kDense>(p);                                                                                                     \
        skip::cp_async_wait<0>();                                                                                                                            \
        __syncthreads();                                                                                                                                     \
        skip::measure<T, D>(p);                                                                                                                              \
    }
#define MEASURE_ALL(NAME, T, TO) MEASURE(NAME, T, TO, 64) MEASURE(NAME, T, TO, 128) MEASURE(NAME, T, TO, 256)
MEASURE_ALL(bf16, __nv_bfloat16, __nv_bfloat16)
MEASURE_ALL(fp16, __half, __half)
MEASURE_ALL(fp16bf16, __half, __nv_bfloat16)

// Decode for every chip from one source: a dense kernel, and the pair scan / gather that skips.
//
// One query token a sequence; the G <= 8 heads of a KV group are the n = 8 columns of mma.m16n8k16, keys and dimensions its rows, so group
// sizes 1 to 8 waste no accumulator. The order of dimensions inside an MMA is free, so each lane reads 16 contiguous bytes of K and V and no
// transposition through shared memory is needed. A warp takes runs of 32 keys through a ring of its own, filled by cp.async: bytes in
// flight are what decode lives on, and no block barrier stands in the loop.
//
// Every block takes an equal contiguous share of all (sequence, KV head, run) units, derived from device memory, so the grid never
// changes. A segment is one (sequence, KV head); blocks that share one leave partial sums, merged in index order by the last to arrive.
// The arrival counters wrap to zero by themselves, so a captured graph can be replayed.
#include "common/mma.cuh"
#include "common/params.h"
#include "common/table.cuh"

namespace skip {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 8;            // columns
constexpr int kMaxSegments = 1024;   // sequences x KV heads of a launch

// Bytes of the rings: what fits beside the merge buffers in 227 KB (sm_90, sm_110) or 163 KB (sm_80, sm_87). The rings of scan and gather are
// small enough for blocks of both to share a multiprocessor, so that the second launch overlaps the tail of the first.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kDenseRing = 128 << 10, kPairRing = 64 << 10;
#else
constexpr int kDenseRing = 192 << 10, kPairRing = 96 << 10;
#endif
// What a kernel does with a run.
enum class Mode { kDense, kGuarded, kScan, kGather };

template <int D, Mode MODE>
struct Ring {
    static constexpr bool kBoth = MODE == Mode::kDense || MODE == Mode::kGuarded;
    // Gather stages a run's scores (512 bytes) and maxima (32) beside its values.
    static constexpr int kStageBytes = kRun * D * 2 * (kBoth ? 2 : 1) + (MODE == Mode::kGather ? 640 : 0);
    static constexpr int kFit = (kBoth ? kDenseRing : kPairRing) / (kWarps * kStageBytes);
    static constexpr int kStages = kFit > 8 ? 8 : kFit;
    static constexpr int kBytes = kStages * kStageBytes * kWarps;
};

// Workspace, in bytes from its start. Partials first: one slot for each (segment, block) pair that meets, at index segment + block.
struct Layout {
    int64_t stats, scores, run_max, lists, tops, counts, arrivals, end;
    __host__ __device__ Layout(int64_t segments, int64_t blocks, int64_t max_runs, int d) {
        stats = (segments + blocks) * kHeads * d * 4;
        scores = stats + (segments + blocks) * kHeads * 2 * 4;
        run_max = scores + segments * max_runs * 512;
        lists = run_max + segments * max_runs * kHeads * 4;
        tops = lists + (segments * max_runs * 4 + 15) / 16 * 16;
        counts = tops + segments * kHeads * 4;
        arrivals = counts + segments * 4;
        end = arrivals + 2 * segments * 4;
    }
};
__device__ __forceinline__ Layout layout_of(const AttnParams& p, int d) { return Layout(int64_t(p.n_seqs) * p.kv_heads, gridDim.x, p.max_runs, d); }

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

__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ uint4 load_shared(uint32_t a) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(a));
    return x;
}

// Where 16-byte chunk `chunk` of key `key` lies in a staged run: K is read by 8 keys x 4 chunks, V by 4 key pairs x 8 chunks.
template <int D>
__device__ __forceinline__ uint32_t k_offset(int key, int chunk) { return key * (D * 2) + ((chunk ^ ((key & 1) << 2)) << 4); }
template <int D>
__device__ __forceinline__ uint32_t v_offset(int key, int chunk) { return key * (D * 2) + ((chunk ^ (((key >> 1) & 3) << 1)) << 4); }

// Starts the copy of one run (contiguous in its page); keys from `live` on become zero.
template <int D, bool V>
__device__ __forceinline__ void stage_run(uint32_t dst, const char* src, int lane, int live) {
    constexpr int kChunks = D / 8;
#pragma unroll
    for (int i = 0; i < kRun * kChunks / 32; ++i) {
        const int at = i * 32 + lane, key = at / kChunks, chunk = at % kChunks;
        cp_async16_zfill(dst + (V ? v_offset<D>(key, chunk) : k_offset<D>(key, chunk)), src + at * 16, key < live ? 16 : 0);
    }
}

// The lane's part of one run of K: keys lane / 4 and + 8 of two groups of 16, 8 dimensions of every 32.
template <int D>
struct KRun {
    uint4 x[2][2][D / 32];
    __device__ __forceinline__ void read(uint32_t run, int lane) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int c = 0; c < D / 32; ++c) x[m][i][c] = load_shared(run + k_offset<D>(m * 16 + i * 8 + (lane >> 2), c * 4 + (lane & 3)));
    }
};

// Queries of the group, column = head; columns from `group` on are zero.
template <int D>
__device__ __forceinline__ void load_q(uint4 (&q)[D / 32], const char* base, int group, int lane) {
#pragma unroll
    for (int c = 0; c < D / 32; ++c)
        q[c] = (lane >> 2) < group ? *reinterpret_cast<const uint4*>(base + ((lane >> 2) * D + c * 32 + (lane & 3) * 8) * 2) : make_uint4(0, 0, 0, 0);
}

// s[m][0..1]: key 16 m + lane / 4, heads 2t and 2t + 1; s[m][2..3]: key + 8. Keys from `live` on are -inf.
template <typename T, int D>
__device__ __forceinline__ void scores(float (&s)[2][4], const KRun<D>& k, const uint4 (&q)[D / 32], int lane, int live) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][e] = 0.f;
#pragma unroll
        for (int c = 0; c < D / 32; ++c) {
            const uint4 lo = k.x[m][0][c], hi = k.x[m][1][c];
            const uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
            mma<T>(s[m], a0, q[c].x, q[c].y);
            mma<T>(s[m], a1, q[c].z, q[c].w);
        }
        if (live < 32) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (m * 16 + (e >> 1) * 8 + (lane >> 2) >= live) s[m][e] = -INFINITY;
        }
    }
}

// Maximum over the run's keys of the lane's two heads.
__device__ __forceinline__ void run_maximum(float (&top)[2], const float (&s)[2][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float x = fmaxf(fmaxf(s[0][h], s[0][h + 2]), fmaxf(s[1][h], s[1][h + 2]));
#pragma unroll
        for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
        top[h] = x;
    }
}

// Sums of one warp: o[h][w]: dimensions 64 h + 8 (lane / 4) + 2w (elements 0, 1: heads 2t, 2t + 1) and + 1 (elements 2, 3).
template <int D>
struct Sums {
    float o[D / 64][4][4];
    float l[2];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int h = 0; h < D / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[h][w][e] = 0.f;
        l[0] = l[1] = 0.f;
    }
    __device__ __forceinline__ void scale(const float (&alpha)[2]) {
#pragma unroll
        for (int h = 0; h < D / 64; ++h)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[h][w][e] *= alpha[e & 1];
        l[0] *= alpha[0];
        l[1] *= alpha[1];
    }
    // Adds weights x values of the staged run; p as `scores` lays it out.
    template <typename T>
    __device__ __forceinline__ void add(const float (&p)[2][4], uint32_t run, int lane) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            l[0] += p[m][0] + p[m][2];
            l[1] += p[m][1] + p[m][3];
            const uint32_t b0 = transpose8x8(pack2<T>(p[m][0], p[m][1])), b1 = transpose8x8(pack2<T>(p[m][2], p[m][3]));
#pragma unroll
            for (int h = 0; h < D / 64; ++h) {
                uint4 v[4];  // keys 2t, 2t + 1, 2t + 8, 2t + 9; 8 dimensions
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] = load_shared(run + v_offset<D>(m * 16 + (lane & 3) * 2 + (i & 1) + (i >> 1) * 8, h * 8 + (lane >> 2)));
                const uint32_t* k[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) k[i] = reinterpret_cast<const uint32_t*>(&v[i]);
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const uint32_t a[4] = {__byte_perm(k[0][w], k[1][w], 0x5410), __byte_perm(k[0][w], k[1][w], 0x7632),
                                           __byte_perm(k[2][w], k[3][w], 0x5410), __byte_perm(k[2][w], k[3][w], 0x7632)};
                    mma<T>(o[h][w], a, b0, b1);
                }
            }
        }
    }
};

// The block's share of the launch: units (runs, or survivors) of all segments, flattened.
struct Shares {
    int total, blocks, begin, end;  // blocks: those with a share
    const int* first;  // shared memory: first unit of each segment, and the total
    __device__ __forceinline__ int units(int s) const { return first[s + 1] - first[s]; }
    // 32 bits hold the product: 2^32 / 148 blocks is 29 million runs, 0.9 billion keys.
    __device__ __forceinline__ int begin_of(int block) const { return int(unsigned(total) * unsigned(block) / unsigned(blocks)); }
    // The block that owns a unit.
    __device__ __forceinline__ int owner(int unit) const {
        int b = int(unsigned(unit) * unsigned(blocks) / unsigned(total));
        while (begin_of(b + 1) <= unit) ++b;
        return b;
    }
};

// units_of(segment) summed up in shared memory; every thread of the block.
template <typename F>
__device__ __forceinline__ Shares share_out(int segments, F units_of) {
    __shared__ int first[kMaxSegments + 1], sums[kWarps];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, each = (segments + kThreads - 1) / kThreads;
    int mine = 0;
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
        const int s = threadIdx.x * each + i;
        if (s < segments) {
            first[s] = mine;  // within the thread's stretch, for now
            mine += units_of(s);
        }
    }
    int scan = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int x = __shfl_up_sync(0xffffffffu, scan, d);
        if (lane >= d) scan += x;
    }
    if (lane == 31) sums[warp] = scan;
    __syncthreads();
    int at = scan - mine, total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) at += sums[w];
        total += sums[w];
    }
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
        const int s = threadIdx.x * each + i;
        if (s < segments) first[s] += at;
    }
    if (threadIdx.x == 0) first[segments] = total;
    __syncthreads();
    Shares x;
    x.total = total;
    x.first = first;
    x.blocks = min(int(gridDim.x), total);
    const bool idle = int(blockIdx.x) >= x.blocks;
    x.begin = idle ? 0 : x.begin_of(blockIdx.x);
    x.end = idle ? 0 : x.begin_of(blockIdx.x + 1);
    return x;
}

__device__ __forceinline__ int runs_of(const Seq& s) { return (s.kv_len + kRun - 1) / kRun; }

// Byte offset of a run in the K or V pool.
template <int D>
__device__ __forceinline__ int64_t run_offset(const AttnParams& p, const Seq& seq, int kv_head, int run) {
    const int page = p.block_tables[seq.pages + run / (kPage / kRun)];
    return ((int64_t(page) * p.kv_heads + kv_head) * kPage + (run % (kPage / kRun)) * kRun) * D * 2;
}

template <int D>
__device__ __forceinline__ const char* query_of(const AttnParams& p, const Seq& seq, int kv_head) {
    return static_cast<const char*>(p.q) + (seq.row * p.q_stride + int64_t(kv_head) * (p.heads / p.kv_heads) * D) * 2;
}

// Merges the warps' sums (each relative to its own maximum, in units of q.k): the block's part of the segment, written as the output where
// it is the only one.
template <typename T, int D>
__device__ void write_part(const AttnParams& p, const Shares& shares, int segment, const Seq& seq, Sums<D>& sums, const float (&top)[2], float* buffer) {
    float(*s_o)[kHeads][D + 4] = reinterpret_cast<float(*)[kHeads][D + 4]>(buffer);
    __shared__ float s_m[kWarps][kHeads], s_l[kWarps][kHeads];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int group = p.heads / p.kv_heads, kv_head = segment % p.kv_heads;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sums.l[h] += __shfl_xor_sync(0xffffffffu, sums.l[h], d);
    if (lane < 4) {
        s_m[warp][2 * t] = top[0], s_m[warp][2 * t + 1] = top[1];
        s_l[warp][2 * t] = sums.l[0], s_l[warp][2 * t + 1] = sums.l[1];
    }
#pragma unroll
    for (int h = 0; h < D / 64; ++h)
#pragma unroll
        for (int w = 0; w < 4; ++w)
#pragma unroll
            for (int e = 0; e < 4; ++e) s_o[warp][2 * t + (e & 1)][h * 64 + (lane >> 2) * 8 + 2 * w + (e >> 1)] = sums.o[h][w][e];
    __syncthreads();

    const int first_block = shares.owner(shares.first[segment]);
    const bool alone = shares.owner(shares.first[segment + 1] - 1) == first_block;
    const int64_t slot = int64_t(segment + blockIdx.x) * kHeads, row = int64_t(seq.row) * p.heads + kv_head * group;
    float* sums_out = static_cast<float*>(p.workspace) + slot * D;
    float2* stats = reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + layout_of(p, D).stats) + slot;  // maximum, sum
#pragma unroll 1
    for (int i = threadIdx.x; i < group * D; i += kThreads) {
        const int head = i / D, d = i % D;
        float m = -INFINITY, l = 0.f, o = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) m = fmaxf(m, s_m[w][head]);
        const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float f = exp2_approx((s_m[w][head] - safe) * scale_log2);
            l += s_l[w][head] * f;
            o += s_o[w][head][d] * f;
        }
        if (alone) {
            static_cast<T*>(p.out)[(row + head) * D + d] = T(l > 0.f ? o / l : 0.f);
            if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + logf(l) : -INFINITY;
        } else {
            if (d == 0) stats[head] = make_float2(m, l);
            sums_out[i] = o;
        }
    }
    __syncthreads();
}

// Adds up the parts of one segment, in the order of the blocks, and writes the output.
template <typename T, int D>
__device__ void merge_parts(const AttnParams& p, int segment, int first_block, int parts, float* factor) {
    __shared__ float s_m[kHeads], s_l[kHeads];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = p.heads / p.kv_heads, kv_head = segment % p.kv_heads;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const int64_t slot = int64_t(segment + first_block) * kHeads, row = int64_t(p.seqs[segment / p.kv_heads].row) * p.heads + kv_head * group;
    const float* slots = static_cast<const float*>(p.workspace) + slot * D;
    const float2* stats = reinterpret_cast<const float2*>(static_cast<const char*>(p.workspace) + layout_of(p, D).stats) + slot;
    // Factors of the parts first, then sums whose loads do not wait for one another.
#pragma unroll 1
    for (int head = warp; head < group; head += kWarps) {
        float m = -INFINITY, l = 0.f;
#pragma unroll 1
        for (int x = lane; x < parts; x += 32) {
            const float2 stat = __ldcg(stats + x * kHeads + head);
            const float top = fmaxf(m, stat.x), safe = top == -INFINITY ? 0.f : top;
            l = l * exp2_approx((m - safe) * scale_log2) + stat.y * exp2_approx((stat.x - safe) * scale_log2);
            m = top;
            factor[x * kHeads + head] = stat.x;
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const float m2 = __shfl_xor_sync(0xffffffffu, m, d), l2 = __shfl_xor_sync(0xffffffffu, l, d);
            const float top = fmaxf(m, m2), safe = top == -INFINITY ? 0.f : top;
            // a + b is symmetric, so all lanes agree to the bit.
            const float a = l * exp2_approx((m - safe) * scale_log2), b = l2 * exp2_approx((m2 - safe) * scale_log2);
            l = a + b;
            m = top;
        }
        const float safe = m == -INFINITY ? 0.f : m;
#pragma unroll 1
        for (int x = lane; x < parts; x += 32) factor[x * kHeads + head] = exp2_approx((factor[x * kHeads + head] - safe) * scale_log2);
        if (lane == 0) s_m[head] = m, s_l[head] = l;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * D / 4; i += kThreads) {
        const int head = i / (D / 4), d = i % (D / 4) * 4;
        const float4* part = reinterpret_cast<const float4*>(slots + head * D + d);
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 16
        for (int x = 0; x < parts; ++x) {
            const float4 v = __ldcg(part + x * (kHeads * D / 4));
            const float f = factor[x * kHeads + head];
            o.x += v.x * f, o.y += v.y * f, o.z += v.z * f, o.w += v.w * f;
        }
        const float m = s_m[head], l = s_l[head], inv = l > 0.f ? 1.f / l : 0.f;
        *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + (row + head) * D + d) = make_uint2(pack2<T>(o.x * inv, o.y * inv), pack2<T>(o.z * inv, o.w * inv));
        if (p.lse && d == 0) p.lse[row + head] = l > 0.f ? m * p.scale + logf(l) : -INFINITY;
    }
    __syncthreads();
}

// After all parts of the block's share are written: one fence, then the block signs in for the segments it shares with others, and
// merges those where it is the last.
template <typename T, int D>
__device__ void arrive(const AttnParams& p, const Shares& shares, int from, int to, int which, float* factor) {
    __shared__ int s_last[2];
    // Only the first and the last segment of a contiguous share can be shared.
    const int ends[2] = {from, to};
    __threadfence();
    __syncthreads();
    if (threadIdx.x < 2) {
        const int segment = ends[threadIdx.x];
        int last = 0;
        if (shares.units(segment) > 0 && !(threadIdx.x == 1 && to == from)) {
            const int first_block = shares.owner(shares.first[segment]), parts = shares.owner(shares.first[segment + 1] - 1) - first_block + 1;
            unsigned* arrivals = reinterpret_cast<unsigned*>(static_cast<char*>(p.workspace) + layout_of(p, D).arrivals) + int64_t(which) * p.n_seqs * p.kv_heads;
            last = parts > 1 && atomicInc(arrivals + segment, parts - 1) == unsigned(parts - 1);
        }
        s_last[threadIdx.x] = last;
    }
    __syncthreads();
    if (s_last[0] | s_last[1]) __threadfence();
#pragma unroll 1
    for (int i = 0; i < 2; ++i)
        if (s_last[i]) {
            const int first_block = shares.owner(shares.first[ends[i]]);
            merge_parts<T, D>(p, ends[i], first_block, shares.owner(shares.first[ends[i] + 1] - 1) - first_block + 1, factor);
        }
}

// Group votes of one segment with the row's true maximum: the ascending list of survivors. Every thread of the block.
template <int D>
__device__ void vote(const AttnParams& p, int segment, const Seq& seq, float ln) {
    __shared__ float s_top[kWarps][kHeads];
    __shared__ int s_count[8][kWarps];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, runs = runs_of(seq), group = p.heads / p.kv_heads;
    const float threshold = ln / p.scale;
    const Layout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);
    const float* run_max = reinterpret_cast<const float*>(ws + layout.run_max) + int64_t(segment) * p.max_runs * kHeads;
    // A chunk is kRounds runs a thread, all loaded before the first is looked at; one chunk (the common case) is read once.
    constexpr int kRounds = 8, kChunk = kRounds * kThreads;
    float4 x[kRounds][2];
    auto load = [&](int base) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            const int run = base + r * kThreads + threadIdx.x;
            const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            x[r][0] = run < runs ? __ldcg(reinterpret_cast<const float4*>(run_max + run * kHeads)) : none;
            x[r][1] = run < runs ? __ldcg(reinterpret_cast<const float4*>(run_max + run * kHeads) + 1) : none;
        }
    };
    float m[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) m[h] = -INFINITY;
    for (int base = 0; base < runs; base += kChunk) {
        load(base);
#pragma unroll
        for (int r = 0; r < kRounds; ++r)
#pragma unroll
            for (int h = 0; h < kHeads; ++h) m[h] = fmaxf(m[h], reinterpret_cast<const float*>(&x[r][0])[h]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int d = 1; d < 32; d *= 2) m[h] = fmaxf(m[h], __shfl_xor_sync(0xffffffffu, m[h], d));
    __syncthreads();
    if (lane == 0) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) s_top[warp][h] = m[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int w = 0; w < kWarps; ++w) m[h] = fmaxf(m[h], s_top[w][h]);
    if (threadIdx.x < kHeads) reinterpret_cast<float*>(ws + layout.tops)[segment * kHeads + threadIdx.x] = fmaxf(fmaxf(s_top[0][threadIdx.x], s_top[1][threadIdx.x]), fmaxf(s_top[2][threadIdx.x], s_top[3][threadIdx.x]));
    int* list = reinterpret_cast<int*>(ws + layout.lists) + int64_t(segment) * p.max_runs;
    uint8_t* kept = p.kept ? p.kept + p.kept_offset[segment / p.kv_heads] + int64_t(segment % p.kv_heads) * runs : nullptr;
    int total = 0;
    for (int base = 0; base < runs; base += kChunk) {
        if (runs > kChunk) load(base);
        unsigned ballot[kRounds];
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            const int run = base + r * kThreads + threadIdx.x;
            bool keep = false;
#pragma unroll
            for (int h = 0; h < kHeads; ++h) keep |= h < group && !(reinterpret_cast<const float*>(&x[r][0])[h] - m[h] < threshold);
            keep &= run < runs;
            if (kept && run < runs) kept[run] = keep;
            ballot[r] = __ballot_sync(0xffffffffu, keep);
            if (lane == 0) s_count[r][warp] = __popc(ballot[r]);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
            int at = total + __popc(ballot[r] & ((1u << lane) - 1));
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
                if (w < warp) at += s_count[r][w];
                total += s_count[r][w];
            }
            if (ballot[r] >> lane & 1) list[at] = base + r * kThreads + threadIdx.x;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        reinterpret_cast<int*>(ws + layout.counts)[segment] = total;
        if (p.counters) {
            atomicAdd(&p.counters[segment / p.kv_heads].votes, static_cast<unsigned long long>(runs));
            atomicAdd(&p.counters[segment / p.kv_heads].skipped, static_cast<unsigned long long>(runs - total));
        }
    }
}

template <typename T, int D, Mode MODE>
__device__ __forceinline__ void decode(const AttnParams& p) {
    constexpr bool kReadsK = MODE != Mode::kGather, kReadsV = MODE != Mode::kScan;
    constexpr int kStages = Ring<D, MODE>::kStages, kRunBytes = kRun * D * 2, kStageBytes = Ring<D, MODE>::kStageBytes;
    extern __shared__ __align__(128) char ring[];
    __shared__ __align__(16) float merge[kReadsV ? kWarps * kHeads * (D + 4) : 4];  // the warps' sums; then the parts' factors, [parts][8]
    static_assert(!kReadsV || kWarps * (D + 4) >= 200, "factors of as many parts as there are blocks");
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, segments = p.n_seqs * p.kv_heads, group = p.heads / p.kv_heads;
    const uint32_t my_ring = smem_addr(ring) + warp * kStages * kStageBytes;
    const float scale_log2 = p.scale * 1.44269504088896340736f;
    const Layout layout = layout_of(p, D);
    char* ws = static_cast<char*>(p.workspace);

    // In the guarded kernel shares are those of the dense one, so that its sums are too; segments that skip are passed over.
    auto skips = [&](int s) { return p.window == 0 && ln_lambda(p.tables, p.seqs[s / p.kv_heads].table, p.seqs[s / p.kv_heads].final_len) > -INFINITY; };
    if constexpr (MODE == Mode::kScan) let_next_grid_start();
    if constexpr (MODE == Mode::kGather) wait_for_previous_grid();
    const Shares shares = share_out(segments, [&](int s) {
        if constexpr (MODE == Mode::kGather) return __ldcg(reinterpret_cast<const int*>(ws + layout.counts) + s);
        if constexpr (MODE == Mode::kScan) {
            if (!skips(s)) {
                if (blockIdx.x == 0) reinterpret_cast<int*>(ws + layout.counts)[s] = 0;
                return 0;
            }
        }
        return runs_of(p.seqs[s / p.kv_heads]);
    });
    if (shares.begin >= shares.end) return;
    int segment = 0;
    while (shares.first[segment + 1] <= shares.begin) ++segment;

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
            if (MODE != Mode::kGuarded || !skips(ahead_segment)) {
                const Seq seq = p.seqs[ahead_segment / p.kv_heads];
                my_run = unit - shares.first[ahead_segment];
                if constexpr (MODE == Mode::kGather) {
                    my_run = __ldcg(reinterpret_cast<const int*>(ws + layout.lists) + int64_t(ahead_segment) * p.max_runs + my_run);
                    my_scores = int64_t(ahead_segment) * p.max_runs + my_run;
                }
                my_live = min(seq.kv_len - my_run * kRun, kRun);
                my_at = run_offset<D>(p, seq, ahead_segment % p.kv_heads, my_run);
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
            if constexpr (kReadsK) stage_run<D, false>(dst, static_cast<const char*>(p.k) + at, lane, live);
            if constexpr (kReadsV) stage_run<D, true>(dst + (kReadsK ? kRunBytes : 0), static_cast<const char*>(p.v) + at, lane, live);
            if constexpr (MODE == Mode::kGather) {
                const int64_t from = __shfl_sync(0xffffffffu, my_scores, in_batch - 1);
                if ((lane & 3) * 2 < group) cp_async16(dst + kRunBytes + lane * 16, ws + layout.scores + from * 512 + lane * 16);
                if (lane < 2) cp_async16(dst + kRunBytes + 512 + lane * 16, ws + layout.run_max + (from * kHeads + lane * 4) * 4);
            }
            if (lane == 0) s_run[warp][filled] = run;
            filled = filled + 1 == kStages ? 0 : filled + 1;
        }
        cp_async_commit();
    };
    int opened = -1, closed = -1;     // segments this block has a part of
    int unit = shares.begin + warp, used = 0, want = kStages;  // prefetches due: the whole ring first, then one a run
    for (; segment < segments && shares.first[segment] < shares.end; ++segment) {
        const int until = min(shares.first[segment + 1], shares.end);
        if (shares.units(segment) == 0) continue;
        if (MODE == Mode::kGuarded && skips(segment)) {
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
        if constexpr (MODE == Mode::kGather) {
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
            const int run = s_run[warp][used], live = min(seq.kv_len - run * kRun, kRun);
            used = used + 1 == kStages ? 0 : used + 1;
            float s[2][4];
            if constexpr (kReadsK) {
                float now[2];
                KRun<D> k;
                k.read(stage, lane);
                scores<T, D>(s, k, q, lane, live);
                if (run * kRun < from) {
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            if (run * kRun + m * 16 + (e >> 1) * 8 + (lane >> 2) < from) s[m][e] = -INFINITY;
                }
                run_maximum(now, s);
                if constexpr (MODE == Mode::kScan) {
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
                    for (int m = 0; m < 2; ++m)
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
            write_part<T, D>(p, shares, segment, seq, sums, top, merge);
            if (opened < 0) opened = segment;
            closed = segment;
        } else {
            __shared__ int s_last;
            const int parts = shares.owner(shares.first[segment + 1] - 1) - shares.owner(shares.first[segment]) + 1;
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) s_last = parts == 1 || atomicInc(reinterpret_cast<unsigned*>(ws + layout.arrivals) + segment, parts - 1) == unsigned(parts - 1);
            __syncthreads();
            if (s_last) {
                __threadfence();
                vote<D>(p, segment, seq, ln_lambda(p.tables, seq.table, seq.final_len));
            }
        }
    }
    if constexpr (kReadsV) {
        if (opened >= 0) arrive<T, D>(p, shares, opened, closed, MODE == Mode::kGather ? 1 : 0, merge);
    }
}

}  // namespace skip

#define DECODE_ONE(NAME, T, D, SUFFIX, MODE)     extern "C" __global__ void __launch_bounds__(skip::kThreads, 1) attn_decode_##NAME##_d##D##_##SUFFIX(const __grid_constant__ skip::AttnParams p) { skip::decode<T, D, skip::Mode::MODE>(p); }
#define DECODE(NAME, T, D)                    \
    DECODE_ONE(NAME, T, D, dense, kDense)     \
    DECODE_ONE(NAME, T, D, guarded, kGuarded) \
    DECODE_ONE(NAME, T, D, scan, kScan)       \
    DECODE_ONE(NAME, T, D, gather, kGather)
DECODE(bf16, __nv_bfloat16, 64)
DECODE(fp16, __half, 64)
DECODE(bf16, __nv_bfloat16, 128)
DECODE(fp16, __half, 128)
DECODE(bf16, __nv_bfloat16, 256)
DECODE(fp16, __half, 256)

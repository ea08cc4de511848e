// From logits to tokens, as the CPU's sampler: temperature, top-k, top-p of what top-k left, min-p, then one draw by (seed, position).
//
// Greedy rows without log-probabilities: `sample_greedy` alone. Anything else: `sample_best`, `sample_weigh`, `sample_draw`, which take all
// rows, greedy ones too. Grid (parts, n) with the same parts <= 64 in all of them (32 is good), 256 threads; `work` holds a SampleWork a row.
//
// `sample_weigh` counts tokens, and their weight, within 1, 2, ... 16 of the largest logit. `sample_draw` gathers those within the least of
// these distances that surely holds everything a filter or a report can ask for, and the last block of a row to arrive sorts them and
// draws. Where no distance will do (more than 2,048 candidates: flat logits, top-k of thousands), the last block searches the whole row, which
// is right and slow: about 5 milliseconds for 152 thousand logits on an H200, against 25 to 33 microseconds otherwise.
//
// `edit_logits` changes rows in place before that: masks, then what is added. Grid (parts, n) of any number of parts, 256 threads.
#include "common/draw.cuh"

namespace skip {

__device__ __forceinline__ u64 best_of_share(const float* row, int vocab) {
    const Share share(vocab, blockIdx.x, gridDim.x);
    u64 best = 0;
    each_logit(row, share.begin, share.end, [&](float x, int id) { best = max(best, make_key(x, id)); });
    return block_max(best);
}

__device__ __forceinline__ uint32_t token_of(u64 best) { return best == 0 || key_logit(best) == -INFINITY ? kNoToken : key_id(best); }

// True in every thread of the last block of the row to come here; what the others wrote before is visible to it.
__device__ __forceinline__ bool last_to_arrive(SampleWork& work) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicInc(&work.arrived, gridDim.x - 1) == gridDim.x - 1;  // wraps to zero
        __threadfence();
    }
    __syncthreads();
    return last;
}

// The least i such that x >= most - (i + 1), exactly as `choose_cut` computes that bound; kCuts or more where there is none.
__device__ __forceinline__ int cut_of(float most, float x) {
    const float distance = most - x;
    if (!(distance < float(kCuts + 1))) return kCuts;
    int cut = int(distance);
    if (x < most - float(cut + 1)) ++cut;
    if (cut > 0 && x >= most - float(cut)) --cut;
    return cut;
}

// Where the row's candidates end: tokens of logits >= `from`. None where `found` is false.
struct Cut {
    bool found;
    float from;
};
__device__ __forceinline__ Cut choose_cut(const SampleWork& work, const Rule& rule, int tops) {
    u64 count = 0, weight = 0;
    for (int i = 0; i < kCuts; ++i) {
        count += work.cut_count[i], weight += work.cut_weight[i];
        if (count > kCandidates) break;
        const bool enough_k = !rule.sorted() || !rule.limited_k || count >= rule.top_k;
        const bool enough_p = !rule.sorted() || rule.limited_k || weight >= rule.goal(work.weight);
        if (count >= u64(tops) && enough_k && enough_p) return {true, rule.most - float(i + 1)};
    }
    return {false, 0.f};
}

// Sorts `n` keys in shared memory, largest first; those behind are zero up to the next power of two.
__device__ __forceinline__ void sort_keys(u64* keys, int n) {
    int size = 1;
    while (size < n) size *= 2;
    for (int i = n + threadIdx.x; i < size; i += kDrawThreads) keys[i] = 0;
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += kDrawThreads) {
                const int low = i / step * 2 * step + i % step, high = low + step;
                const u64 a = keys[low], b = keys[high];
                if ((a < b) == ((low & run) == 0)) keys[low] = b, keys[high] = a;
            }
        }
    __syncthreads();
}

// The first place in [0, n) where the running sum of weigh(place) reaches `goal`, and n where it never does; every thread gets it.
template <typename Weigh>
__device__ __forceinline__ int first_reaching(int n, u64 goal, const Weigh& weigh) {
    __shared__ u64 sums[kDrawWarps];
    __shared__ int found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) found = n;
    u64 before = 0;
    for (int base = 0; base < n; base += kDrawThreads) {
        const int i = base + threadIdx.x;
        const u64 own = i < n ? weigh(i) : 0;
        u64 sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u64 other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        __syncthreads();
        if (lane == 31) sums[warp] = sum;
        __syncthreads();
        u64 all = 0;
        for (int w = 0; w < kDrawWarps; ++w) {
            if (w < warp) sum += sums[w];
            all += sums[w];
        }
        sum += before;
        if (i < n && sum >= goal && sum - own < goal) found = i;  // one thread at most
        before += all;
        if (before >= goal) break;
    }
    __syncthreads();
    return found;
}

// What draws from the sorted candidates.
struct Sorted {
    const u64* keys;
    int n;
    __device__ __forceinline__ u64 draw(const Rule& rule, const SampleParams& p, u64 whole) const {
        int kept = rule.limited_k ? int(min(rule.top_k, u64(n))) : n;
        const auto plain = [&](int i) { return fixed(rule.weigh(key_logit(keys[i]))); };
        const auto filtered = [&](int i) { return rule.kept(key_logit(keys[i])); };
        if (rule.limited_p) {
            if (rule.limited_k) whole = total(kept, plain);
            kept = min(first_reaching(kept, rule.goal(whole), plain) + 1, kept);
        }
        return keys[min(first_reaching(kept, draw_target(p, total(kept, filtered)) + 1, filtered), kept - 1)];
    }
    __device__ __forceinline__ u64 top(int i, u64) const { return keys[i]; }

private:
    template <typename Weigh>
    __device__ __forceinline__ u64 total(int n, const Weigh& weigh) const {
        u64 sum = 0;
        for (int i = threadIdx.x; i < n; i += kDrawThreads) sum += weigh(i);
        return block_total(sum);
    }
};

// The same from the whole row by bisection over keys.
struct WholeRow {
    const float* logits;
    int vocab;
    __device__ __forceinline__ u64 draw(const Rule& rule, const SampleParams& p, u64 whole) const {
        u64 least = 0;
        const auto one = [](float) { return u64(1); };
        const auto plain = [&](float x) { return fixed(rule.weigh(x)); };
        const auto filtered = [&](float x) { return rule.kept(x); };
        if (rule.limited_k) least = key_reaching(0, rule.top_k, one);
        if (rule.limited_p) least = key_reaching(least, rule.goal(rule.limited_k ? total(least, plain) : whole), plain);
        return key_reaching(least, draw_target(p, total(least, filtered)) + 1, filtered);
    }
    // The most likely token behind `above`.
    __device__ __forceinline__ u64 top(int, u64 above) const {
        u64 best = 0;
        each_logit(logits, 0, vocab, [&](float x, int id) {
            const u64 key = make_key(x, id);
            if (key < above) best = max(best, key);
        });
        return block_max(best);
    }

private:
    template <typename Weigh>
    __device__ __forceinline__ u64 total(u64 least, const Weigh& weigh) const {
        u64 sum = 0;
        each_logit(logits, 0, vocab, [&](float x, int id) {
            if (make_key(x, id) >= least) sum += weigh(x);
        });
        return block_total(sum);
    }
    // The largest key, `least` at least, such that the weights from it up reach `goal`.
    template <typename Weigh>
    __device__ __forceinline__ u64 key_reaching(u64 least, u64 goal, const Weigh& weigh) const {
        u64 key = 0;
        for (int bit = 32 + kIdBits - 1; bit >= 0; --bit) {
            const u64 attempt = key | u64(1) << bit;
            if (attempt <= least || total(attempt, weigh) >= goal) key = attempt;
        }
        return max(key, least);
    }
};

// Nothing sorted: the draw runs over ids in order. The part is known from the parts' sums; inside it the block scans.
__device__ __forceinline__ u64 draw_by_id(const float* row, int vocab, const Rule& rule, const SampleParams& p, const SampleWork& work) {
    u64 total = 0;
    for (int i = 0; i < gridDim.x; ++i) total += work.part_weight[i];
    u64 target = draw_target(p, total);
    int part = 0;
    while (target >= work.part_weight[part]) target -= work.part_weight[part++];
    const Share share(vocab, part, gridDim.x);
    const auto weigh = [&](int i) { return rule.kept(clean(row[share.begin + i])); };
    const int id = share.begin + first_reaching(share.end - share.begin, target + 1, weigh);
    return make_key(clean(row[id]), id);
}

template <typename Tokens>
__device__ __forceinline__ u64 draw_token(const Tokens& tokens, const float* row, int vocab, const Rule& rule, const SampleParams& p, const SampleWork& work) {
    if (!rule.draws) return work.best;
    return rule.sorted() ? tokens.draw(rule, p, work.weight) : draw_by_id(row, vocab, rule, p, work);
}

template <typename Tokens>
__device__ __forceinline__ void report(const Tokens& tokens, int vocab, const SampleParams& p, const SampleWork& work, u64 drawn, Drawn& out) {
    const double log_odds = log(double(work.odds) / double(kUnit)) + double(key_logit(work.best));
    const auto logprob = [&](u64 key) { return float(double(key_logit(key)) - log_odds); };
    const int tops = p.logprobs < 0 ? 0 : min(min(p.logprobs, kTop), vocab);
    u64 above = ~u64(0);
    for (int i = 0; i < tops; ++i) {
        above = tokens.top(i, above);
        if (threadIdx.x == 0) out.top_id[i] = key_id(above), out.top_logprob[i] = logprob(above);
    }
    if (threadIdx.x == 0) {
        out.token = key_id(drawn);
        out.logprob = p.logprobs < 0 ? NAN : logprob(drawn);
        out.top_n = tops;
    }
}

__device__ __forceinline__ void clear(SampleWork& work) {
    __syncthreads();
    if (threadIdx.x == 0) work.best = work.weight = work.odds = 0, work.candidates = 0;
    if (threadIdx.x < kCuts) work.cut_weight[threadIdx.x] = 0, work.cut_count[threadIdx.x] = 0;
    if (threadIdx.x < kSampleParts) work.part_weight[threadIdx.x] = 0;
}

__device__ __forceinline__ void edit_logits(float* logits, int vocab, const Edits* edits, const uint32_t* words) {
    pdl_launch();
    pdl_wait();
    const Edits e = edits[blockIdx.y];
    float* row = logits + int64_t(blockIdx.y) * vocab;
    const auto allowed = [&](int id) { return e.mask < 0 || (id / 32 < e.mask_words && words[e.mask + id / 32] >> id % 32 & 1); };
    if (e.mask >= 0) {
        const Share share(vocab, blockIdx.x, gridDim.x);
        for (int id = share.begin + threadIdx.x; id < share.end; id += kDrawThreads)
            if (!allowed(id)) row[id] = -INFINITY;
    }
    // A token that is not allowed is left to the thread above, so no two write one logit.
    for (int i = blockIdx.x * kDrawThreads + threadIdx.x; i < e.added_count; i += gridDim.x * kDrawThreads) {
        const uint32_t id = words[e.added + 2 * i];
        if (id < uint32_t(vocab) && allowed(int(id))) row[id] += __uint_as_float(words[e.added + 2 * i + 1]);
    }
}

__device__ __forceinline__ void sample_greedy(const float* logits, int vocab, const SampleParams* params, int* drawn_ids, Drawn* out, SampleWork* works) {
    pdl_launch();
    pdl_wait();
    const int r = blockIdx.y, slot = params[r].slot;
    if (slot < 0) return;
    SampleWork& work = works[r];
    const u64 best = best_of_share(logits + int64_t(r) * vocab, vocab);
    if (threadIdx.x != 0) return;
    atomicMax(&work.best, best);
    __threadfence();
    if (atomicInc(&work.arrived, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence();
    const uint32_t token = token_of(atomicExch(&work.best, 0));
    drawn_ids[slot] = int(token);
    out[r].token = token, out[r].logprob = NAN, out[r].top_n = 0;
}

__device__ __forceinline__ void sample_best(const float* logits, int vocab, const SampleParams* params, SampleWork* works) {
    pdl_launch();
    pdl_wait();
    const int r = blockIdx.y;
    if (params[r].slot < 0) return;
    const u64 best = best_of_share(logits + int64_t(r) * vocab, vocab);
    if (threadIdx.x == 0) atomicMax(&works[r].best, best);
}

__device__ __forceinline__ void sample_weigh(const float* logits, int vocab, const SampleParams* params, SampleWork* works) {
    pdl_launch();
    pdl_wait();
    const int r = blockIdx.y;
    const SampleParams p = params[r];
    SampleWork& work = works[r];
    if (p.slot < 0 || token_of(work.best) == kNoToken) return;
    const Rule rule(p, key_logit(work.best), vocab);
    if (!rule.draws && p.logprobs < 0) return;

    // Tokens and weight between a distance and the next, a column a thread. Weights are rounded down to 2^-20: these sums decide only which
    // distance is safe.
    __shared__ uint2 found[kCuts][kDrawThreads];
#pragma unroll
    for (int i = 0; i < kCuts; ++i) found[i][threadIdx.x] = make_uint2(0, 0);
    const Share share(vocab, blockIdx.x, gridDim.x);
    u64 all = 0, kept = 0, odds = 0;
    each_logit(logits + int64_t(r) * vocab, share.begin, share.end, [&](float x, int) {
        float w = 0.f;
        if (rule.draws) {
            w = rule.weigh(x);
            all += fixed(w);
            if (w >= rule.floor) kept += fixed(w);
        }
        if (p.logprobs >= 0) odds += fixed(weight(x, rule.most, 1.f));
        const int cut = cut_of(rule.most, x);
        if (cut < kCuts) {
            uint2& at = found[cut][threadIdx.x];
            at = make_uint2(at.x + 1, at.y + uint32_t(w * 1048576.f));
        }
    });
    all = block_total(all), kept = block_total(kept), odds = block_total(odds);
    if (threadIdx.x == 0) {
        work.part_weight[blockIdx.x] = kept;
        atomicAdd(&work.weight, all);
        atomicAdd(&work.odds, odds);
    }
    for (int cut = threadIdx.x / 32; cut < kCuts; cut += kDrawWarps) {
        u64 count = 0, w = 0;
        for (int i = threadIdx.x % 32; i < kDrawThreads; i += 32) count += found[cut][i].x, w += found[cut][i].y;
        count = warp_sum(count), w = warp_sum(w);
        if (threadIdx.x % 32 == 0 && count > 0) atomicAdd(&work.cut_count[cut], uint32_t(count)), atomicAdd(&work.cut_weight[cut], w << 20);
    }
}

__device__ __forceinline__ void sample_draw(const float* logits, int vocab, const SampleParams* params, int* drawn_ids, Drawn* out, SampleWork* works) {
    __shared__ u64 keys[kCandidates];
    pdl_launch();
    pdl_wait();
    const int r = blockIdx.y;
    const SampleParams p = params[r];
    if (p.slot < 0) return;
    SampleWork& work = works[r];
    const float* row = logits + int64_t(r) * vocab;
    const bool drawable = token_of(work.best) != kNoToken;
    const Rule rule(p, key_logit(work.best), vocab);
    const int tops = p.logprobs < 0 ? 0 : min(min(p.logprobs, kTop), vocab);
    const bool wants = drawable && (rule.sorted() || tops > 0);
    const Cut cut = wants ? choose_cut(work, rule, tops) : Cut{true, INFINITY};
    if (wants && cut.found) {
        const Share share(vocab, blockIdx.x, gridDim.x);
        each_logit(row, share.begin, share.end, [&](float x, int id) {
            if (x >= cut.from) work.candidate[atomicAdd(&work.candidates, 1u)] = make_key(x, id);
        });
    }
    if (!last_to_arrive(work)) return;

    if (!drawable) {
        if (threadIdx.x == 0) drawn_ids[p.slot] = int(kNoToken), out[r].token = kNoToken, out[r].logprob = NAN, out[r].top_n = 0;
    } else if (cut.found) {
        const int n = wants ? int(*reinterpret_cast<volatile uint32_t*>(&work.candidates)) : 0;
        for (int i = threadIdx.x; i < n; i += kDrawThreads) keys[i] = *reinterpret_cast<volatile u64*>(&work.candidate[i]);
        if (n > 0) sort_keys(keys, n);
        const Sorted tokens{keys, n};
        const u64 drawn = draw_token(tokens, row, vocab, rule, p, work);
        report(tokens, vocab, p, work, drawn, out[r]);
        if (threadIdx.x == 0) drawn_ids[p.slot] = int(key_id(drawn));
    } else {
        const WholeRow tokens{row, vocab};
        const u64 drawn = draw_token(tokens, row, vocab, rule, p, work);
        report(tokens, vocab, p, work, drawn, out[r]);
        if (threadIdx.x == 0) drawn_ids[p.slot] = int(key_id(drawn));
    }
    clear(work);
}

}  // namespace skip

#define SAMPLER extern "C" __global__ void __launch_bounds__(skip::kDrawThreads, 2)
SAMPLER edit_logits(float* logits, int vocab, const skip::Edits* edits, const uint32_t* words) { skip::edit_logits(logits, vocab, edits, words); }
SAMPLER sample_greedy(const float* logits, int vocab, const skip::SampleParams* params, int* drawn_ids, skip::Drawn* out, skip::SampleWork* work) {
    skip::sample_greedy(logits, vocab, params, drawn_ids, out, work);
}
SAMPLER sample_best(const float* logits, int vocab, const skip::SampleParams* params, skip::SampleWork* work) { skip::sample_best(logits, vocab, params, work); }
SAMPLER sample_weigh(const float* logits, int vocab, const skip::SampleParams* params, skip::SampleWork* work) { skip::sample_weigh(logits, vocab, params, work); }
SAMPLER sample_draw(const float* logits, int vocab, const skip::SampleParams* params, int* drawn_ids, skip::Drawn* out, skip::SampleWork* work) {
    skip::sample_draw(logits, vocab, params, drawn_ids, out, work);
}

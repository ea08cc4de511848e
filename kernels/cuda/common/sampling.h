// How a row's token is drawn and what is reported: plain structs, the same bytes in Rust and in CUDA.
#pragma once
#include <cstdint>

namespace skip {

constexpr int kTop = 20;                // most likely tokens reported at most
constexpr uint32_t kNoToken = ~0u;      // no logit was a number
constexpr int kSampleParts = 64;        // blocks a row at most
constexpr int kCandidates = 2048;       // most likely tokens that are sorted at once
constexpr int kCuts = 16;               // distances from the largest logit at which candidates are counted

// 40 bytes, alignment 8.
struct SampleParams {
    uint64_t seed;
    uint64_t position;                  // absolute position of the token to draw; the draw depends on (seed, position) alone
    float temperature;                  // greedy unless > 0
    float top_p;                        // 1 keeps all
    float min_p;                        // 0 drops none
    uint32_t top_k;                     // 0 keeps all
    int32_t slot;                       // where in `drawn_ids` the token goes; -1: a padding row, nothing is written for it
    int32_t logprobs;                   // most likely tokens to report, 0 to 20; -1: no log-probabilities
};

// A row's edits, 16 bytes: where they lie, in words from the beginning of what the kernel is given.
struct Edits {
    int32_t mask;                       // bit i % 32 of word i / 32: token i may be drawn; those behind the last word may not. -1: all may
    int32_t mask_words;
    int32_t added;                      // pairs (token, bits of a float that is added to its logit), no token twice
    int32_t added_count;
};

// 172 bytes, alignment 4.
struct Drawn {
    uint32_t token;                     // or kNoToken
    float logprob;                      // of the token, where asked for; NaN otherwise
    uint32_t top_n;                     // entries of `top_*` that are there
    uint32_t top_id[kTop];
    float top_logprob[kTop];
};

// A row's scratch; zeros before the first launch, and each draw leaves it so.
struct SampleWork {
    unsigned long long best;            // largest key
    unsigned long long weight;          // sum of weights
    unsigned long long odds;            // sum of exp(logit - largest)
    unsigned long long cut_weight[kCuts];   // at distances (i, i + 1] of the largest logit, rounded down
    unsigned long long part_weight[kSampleParts];
    uint32_t cut_count[kCuts];
    uint32_t arrived;
    uint32_t candidates;
    unsigned long long candidate[kCandidates];
};

}  // namespace skip

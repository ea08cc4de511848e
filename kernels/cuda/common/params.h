// What every attention kernel is launched with: one plain struct, the same bytes in Rust and in CUDA.
//
// Everything that changes from step to step (lengths, block tables, table slots) is read from device memory, so that a captured graph
// stays valid. Strides are in elements and 64 bits wide: page * kv_heads * 128 * head_dim passes 2^31 at 4.3 GB of bf16.
#pragma once
#include <cstdint>

namespace skip {

constexpr int kPage = 128;       // tokens a page, keys a prefill tile
constexpr int kRun = 32;         // keys a decode run
constexpr int kTableRows = 64;   // rows a device table slot holds

// One scale table in device memory. Lookup is floor; S <= 0, S >= L, below the first row and above max_len are dense.
struct Table {
    int32_t rows;
    int32_t max_len;             // longest calibrated length; INT32_MAX where none is recorded
    int32_t length[kTableRows];
    float s[kTableRows];
};

// One sequence of a step.
struct Seq {
    int32_t row;                 // first row in the packed queries and outputs
    int32_t q_len;
    int32_t q_start;             // absolute position of the first query row
    int32_t kv_len;              // keys in the pages
    int32_t final_len;           // L of the vote
    int32_t table;               // slot, or -1: dense
    int32_t pages;               // offset of the block table in `block_tables`
    int32_t pad;
};

struct Counters {
    unsigned long long votes;
    unsigned long long skipped;
};

// One entry of the prefill work list.
struct Work {
    int32_t seq;                 // -1: nothing to do
    int32_t tile;                // query tile of the sequence, counted from its first row's
};

// Votes by gap: how far the largest score of a tile (or run) lies under the row's maximum, the largest such difference over the voting rows,
// in nats. Bin b holds gaps from kGapLow + b / kGapsPerNat to the next bin's, bin 0 all below as well, the last those of 0 and more, which no
// lambda below 1 skips: at ln(lambda) = kGapLow + b / kGapsPerNat exactly the votes of bins before b skip.
constexpr int kGapsPerNat = 128;
constexpr int kGapLow = -16;
constexpr int kGapBins = -kGapLow * kGapsPerNat + 1;
struct GapHistogram {
    unsigned long long votes[kGapBins];
    double mass[kGapBins];       // softmax numerator of their tiles, relative to each row's final maximum
};

struct AttnParams {
    const void* q;               // [rows][q_stride], head h at h * head_dim, RoPE applied
    const void* k;               // [page][kv_head][128][head_dim]
    const void* v;
    void* out;                   // [rows][heads * head_dim]
    float* lse;                  // [rows][heads], natural log, or null
    const Seq* seqs;
    const int32_t* block_tables;
    const Table* tables;
    Counters* counters;          // one a sequence, or null
    uint8_t* kept;               // votes for tests, or null; see kept_offset
    const int64_t* kept_offset;  // one a sequence
    const Work* work;            // prefill: longest first
    void* workspace;             // decode: scores, run maxima, survivor lists, partials
    int64_t q_stride;
    int32_t heads;
    int32_t kv_heads;
    int32_t n_seqs;
    int32_t window;              // 0: none
    float scale;                 // q.k to nats
    int32_t max_runs;            // decode: runs a sequence the workspace is laid out for
    int32_t grid;                // decode: blocks of the scan
    int32_t pad;
    GapHistogram* gaps;          // measure kernels, added to: [sequences][2]: this kernel's votes; decode: also 128-key pages against a running maximum
};

}  // namespace skip

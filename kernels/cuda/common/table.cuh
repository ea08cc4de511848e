// The only way a threshold reaches a kernel: table slot and length to ln(lambda).
#pragma once
#include "params.h"

namespace skip {

// ln(S / L), or -inf where attention is exactly dense. Same rules as ScaleTable::ln_lambda.
__device__ __forceinline__ float ln_lambda(const Table* tables, int slot, int len) {
    if (slot < 0) return -INFINITY;
    const Table& t = tables[slot];
    if (len > t.max_len || t.rows == 0 || len < t.length[0]) return -INFINITY;
    int row = 0;
    while (row + 1 < t.rows && t.length[row + 1] <= len) ++row;
    const float s = t.s[row];
    return s > 0.f && s < float(len) ? logf(s / float(len)) : -INFINITY;  // lengths below 2^24 are exact in float32
}

}  // namespace skip

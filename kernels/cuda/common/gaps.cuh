// Adding votes to histograms over their gap.
#pragma once
#include "params.h"

namespace skip {

// A vote whose gap is `gap` nats (+inf where there was no maximum yet) and whose tile carries `mass`.
__device__ __forceinline__ void add_vote(GapHistogram& to, float gap, double mass) {
    const float at = (gap - kGapLow) * kGapsPerNat;
    const int bin = at >= float(kGapBins - 1) ? kGapBins - 1 : at > 0.f ? int(at) : 0;
    atomicAdd(&to.votes[bin], 1ull);
    atomicAdd(&to.mass[bin], mass);
}

}  // namespace skip

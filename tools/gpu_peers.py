#!/usr/bin/env python3
"""What tools/bench-gpu sets the kernels beside and tools/bench-kernels does not time: bandwidth, and FlashInfer's FA3 prefill. A JSON object a line.

    gpu_peers.py [--quick] [--warm]     (needs torch; FlashInfer where it is importable)

Medians; L2 is emptied by reading half a gigabyte before each measurement. --warm only has FlashInfer compile what it and bench-kernels need.
"""
import argparse
import json
import statistics
import sys

import torch

PREFILL = [(32, 8, 128, 8192), (32, 8, 128, 32768), (12, 2, 128, 32768)]
PAGE = 64


def say(**record):
    print(json.dumps(record), flush=True)


class Clock:
    """Times one call at a time, behind something that empties L2 and hides the host's enqueueing."""

    def __init__(self):
        self.other = torch.ones(512 << 20, dtype=torch.uint8, device="cuda").view(torch.int64)

    def median(self, call, rounds):
        for _ in range(3):
            call()
        events = []
        for _ in range(rounds):
            self.other.max()
            before, after = torch.cuda.Event(True), torch.cuda.Event(True)
            before.record()
            call()
            after.record()
            events.append((before, after))
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in events)


def bandwidth(clock):
    size = 4 << 30
    x = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    say(kind="bandwidth", kernel="copy", gbytes=2 * size / clock.median(lambda: y.copy_(x), 9) / 1e6)
    say(kind="bandwidth", kernel="read", gbytes=size / clock.median(lambda: x.view(torch.int64).max(), 9) / 1e6)


def workspace():
    return torch.empty(512 << 20, dtype=torch.uint8, device="cuda")


def fa3(flashinfer, heads, kv_heads, d, length):
    q = torch.randn(length, heads, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(length, kv_heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", backend="fa3")
    bounds = torch.tensor([0, length], dtype=torch.int32, device="cuda")
    wrapper.plan(bounds, bounds, heads, kv_heads, d, causal=True, q_data_type=torch.bfloat16)
    return lambda: wrapper.run(q, k, v)


def decode(flashinfer, heads, kv_heads, d):
    cache = torch.randn(16, 2, PAGE, kv_heads, d, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=True)
    bounds, last = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 16], [PAGE]))
    order = torch.arange(16, dtype=torch.int32, device="cuda")
    wrapper.plan(bounds, order, last, heads, kv_heads, d, PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return lambda: wrapper.run(torch.randn(1, heads, d, device="cuda", dtype=torch.bfloat16), cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    try:
        import flashinfer
    except ImportError as error:
        flashinfer = None
        print(f"no FlashInfer: {error}", file=sys.stderr)
    say(kind="versions", torch=torch.__version__, cudnn=torch.backends.cudnn.version(), flashinfer=getattr(flashinfer, "__version__", None))
    if args.warm:
        for make, shape in ((fa3, (32, 8, 128, 1024)), (decode, (32, 8, 128)), (decode, (14, 2, 64))):
            make(flashinfer, *shape)()
            torch.cuda.synchronize()
        return
    clock = Clock()
    bandwidth(clock)
    for heads, kv_heads, d, length in () if not flashinfer else PREFILL[1:2] if args.quick else PREFILL:
        shape = {"kind": "prefill", "shape": f"prefill {heads}/{kv_heads} d {d} x {length}", "what": "dense", "kernel": "FlashInfer FA3"}
        try:
            ms = clock.median(fa3(flashinfer, heads, kv_heads, d, length), 7)
            say(**shape, ms=ms, tflops=2 * heads * d * length * length / ms / 1e9)
        except Exception as error:  # noqa: BLE001  whatever another program throws is its result
            say(**shape, error=repr(error)[:200])


if __name__ == "__main__":
    main()

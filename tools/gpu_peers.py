#!/usr/bin/env python3
"""Attention of other programs on this GPU, and its bandwidth: what tools/bench-gpu sets kernels beside. One JSON object a line.

    gpu_peers.py [bandwidth] [prefill] [decode] [--quick] [--warm]     (needs torch; FlashInfer where it is importable)

Prefill: cuDNN and FlashAttention-2 through torch, FlashInfer's FA3, whole causal prompts. Decode: FlashInfer over paged, shuffled caches.
Medians; L2 is emptied by reading half a gigabyte before each measurement. --warm only has FlashInfer compile what it needs.
"""
import argparse
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PREFILL = [(32, 8, 128, 8192), (32, 8, 128, 32768), (32, 8, 128, 65536), (14, 2, 64, 32768), (12, 2, 128, 32768), (8, 2, 256, 16384)]
DECODE = [(32, 8, 128, 1, 8192), (32, 8, 128, 1, 32768), (32, 8, 128, 1, 131072), (32, 8, 128, 4, 32768), (32, 8, 128, 16, 32768), (14, 2, 64, 1, 32768),
          (14, 2, 64, 16, 32768)]
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
    say(what="bandwidth", who="copy", gbs=2 * size / clock.median(lambda: y.copy_(x), 9) / 1e6)
    say(what="bandwidth", who="read", gbs=size / clock.median(lambda: x.view(torch.int64).max(), 9) / 1e6)


def prefill(clock, flashinfer, quick):
    for heads, kv_heads, d, length in PREFILL[:2] if quick else PREFILL:
        shape = {"what": "prefill", "heads": heads, "kv_heads": kv_heads, "d": d, "batch": 1, "length": length}
        work = 2 * heads * d * length * length / 1e9
        rounds = 5 if length > 40000 else 7
        q = torch.randn(1, heads, length, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, kv_heads, length, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for who, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    ms = clock.median(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), rounds)
                say(**shape, who=who, ms=ms, tflops=work / ms)
            except RuntimeError as error:
                say(**shape, who=who, error=str(error)[:120])
        if flashinfer and d != 256:
            try:
                ms = clock.median(fa3(flashinfer, heads, kv_heads, d, length), rounds)
                say(**shape, who="FlashInfer FA3", ms=ms, tflops=work / ms)
            except Exception as error:  # noqa: BLE001  whatever another program throws is its result
                say(**shape, who="FlashInfer FA3", error=repr(error)[:200])


def workspace():
    return torch.empty(512 << 20, dtype=torch.uint8, device="cuda")


def fa3(flashinfer, heads, kv_heads, d, length):
    q = torch.randn(length, heads, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(length, kv_heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", backend="fa3")
    bounds = torch.tensor([0, length], dtype=torch.int32, device="cuda")
    wrapper.plan(bounds, bounds, heads, kv_heads, d, causal=True, q_data_type=torch.bfloat16)
    return lambda: wrapper.run(q, k, v)


def paged(flashinfer, heads, kv_heads, d, batch, length):
    pages = length // PAGE
    cache = torch.randn(batch * pages, 2, PAGE, kv_heads, d, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(batch, heads, d, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=True)
    bounds = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    order = torch.randperm(batch * pages, device="cuda").int()
    last = torch.full((batch,), PAGE, dtype=torch.int32, device="cuda")
    wrapper.plan(bounds, order, last, heads, kv_heads, d, PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return lambda: wrapper.run(q, cache)


def decode(clock, flashinfer, quick):
    for heads, kv_heads, d, batch, length in DECODE[:2] if quick else DECODE:
        shape = {"what": "decode", "heads": heads, "kv_heads": kv_heads, "d": d, "batch": batch, "length": length, "who": "FlashInfer"}
        try:
            ms = clock.median(paged(flashinfer, heads, kv_heads, d, batch, length), 21)
            say(**shape, ms=ms, gbs=4 * batch * length * kv_heads * d / ms / 1e6)
        except Exception as error:  # noqa: BLE001
            say(**shape, error=repr(error)[:200])
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["bandwidth", "prefill", "decode"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    try:
        import flashinfer
    except ImportError as error:
        flashinfer = None
        print(f"no FlashInfer: {error}", file=sys.stderr)
    say(what="versions", torch=torch.__version__, cudnn=torch.backends.cudnn.version(), flashinfer=getattr(flashinfer, "__version__", None))
    if args.warm:
        for make, shape in ((paged, (32, 8, 128, 1, 1024)), (paged, (14, 2, 64, 1, 1024)), (fa3, (32, 8, 128, 1024)), (fa3, (14, 2, 64, 1024))):
            make(flashinfer, *shape)()
        torch.cuda.synchronize()
        return
    clock = Clock()
    if "bandwidth" in args.what:
        bandwidth(clock)
    if "prefill" in args.what:
        prefill(clock, flashinfer, args.quick)
    if "decode" in args.what and flashinfer:
        decode(clock, flashinfer, args.quick)


if __name__ == "__main__":
    main()

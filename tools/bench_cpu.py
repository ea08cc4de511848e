#!/usr/bin/env python3
"""The measuring half of tools/bench-cpu: takes turns between skipd's decoder and llama.cpp and prints both sides and their ratios.

    bench_cpu.py --model DIR --gguf FILE --bench PROGRAM [--rounds N] [--threads N] [--precision NAME] [--chunk N] [--prompts N,N]
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

FLOOR = 0.8
DECODE_TOKENS = 32


def prompt(length, vocab=40_000):
    return [(i * 7919 + 13) % (vocab - 1000) + 500 for i in range(length)]


class Skipd:
    """The decoder of this repository, one measurement a line."""

    def __init__(self, program, model, threads, precision, chunk):
        self.process = subprocess.Popen([program, model, str(threads), precision, str(chunk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.info = json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench-cpu: the decoder ended early")
        return json.loads(answer)

    def prefill(self, length):
        answer = self.ask(f"prefill {length}")
        return length / answer["seconds"], answer["processor"] / length

    def decode(self, length):
        answer = self.ask(f"decode {length} {DECODE_TOKENS}")
        return 1 / statistics.median(answer["times"]), answer["processor"] / DECODE_TOKENS

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Llama:
    """llama.cpp through its Python binding."""

    def __init__(self, gguf, threads, context):
        import llama_cpp

        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.model = llama_cpp.Llama(model_path=gguf, n_ctx=context, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
                                     flash_attn=True, verbose=False)
        self.vocab = self.model.n_vocab()

    def prefill(self, length):
        self.model.reset()
        tokens = prompt(length, self.vocab)
        began, processor = time.perf_counter(), time.process_time()
        self.model.eval(tokens)
        return length / (time.perf_counter() - began), (time.process_time() - processor) / length

    def decode(self, length):
        self.prefill(length)
        times, processor = [], time.process_time()
        for i in range(DECODE_TOKENS):
            began = time.perf_counter()
            self.model.eval([500 + i])
            times.append(time.perf_counter() - began)
        return 1 / statistics.median(times), (time.process_time() - processor) / DECODE_TOKENS


def in_bf16(gguf):
    """The same weights in bfloat16, made once beside the cache's other files."""
    import llama_cpp

    out = os.path.join(os.environ.get("BENCH_CACHE", "."), os.path.basename(gguf).removesuffix(".gguf") + "-bf16.gguf")
    if not os.path.exists(out):
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = 32
        params.allow_requantize = True
        partial = out + ".part"
        if llama_cpp.llama_model_quantize(gguf.encode(), partial.encode(), ctypes.byref(params)) != 0:
            sys.exit(f"bench-cpu: llama.cpp could not turn {gguf} into bfloat16")
        os.replace(partial, out)
    return out


def spread(values):
    middle = statistics.median(values)
    return f"{middle:8.1f} ±{100 * (max(values) - min(values)) / 2 / middle:3.0f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--prompts", default="512,4096")
    args = parser.parse_args()
    lengths = [int(n) for n in args.prompts.split(",")]

    theirs = Llama(in_bf16(args.gguf), args.threads, max(lengths) + 512)
    ours = Skipd(args.bench, args.model, args.threads, args.precision, args.chunk)
    print(f"{ours.info['device']}, {args.threads} threads; skipd: {ours.info['kernels']}, loaded in {ours.info['load']:.2f} s; "
          f"{theirs.version}, bf16 weights, flash attention; {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    cases = [(what, n) for what in ("prefill", "decode") for n in lengths]
    print(f"{'tokens/s':16} {'skipd':>16} {'llama.cpp':>16}   ratio (median of rounds, least, most); ratio by processor time")
    below = 0
    for what, length in cases:
        left, right = [], []
        for turn in range(args.rounds):
            sides = [(ours, left), (theirs, right)]
            for side, values in sides if turn % 2 == 0 else reversed(sides):
                values.append(getattr(side, what)(length))
        ratios = [a[0] / b[0] for a, b in zip(left, right)]
        ratio = statistics.median(ratios)
        # Less moved by whatever else runs on the machine; waiting for one another counts as work.
        processor = statistics.median(b[1] / max(a[1], 1e-9) for a, b in zip(left, right))
        below += ratio < FLOOR
        print(f"{what + ' ' + str(length):16} {spread([a[0] for a in left]):>16} {spread([b[0] for b in right]):>16}   "
              f"{ratio:.2f} ({min(ratios):.2f}, {max(ratios):.2f}); {processor:.2f}", flush=True)
    ours.close()
    print(f"floor {FLOOR}: {'held' if not below else f'missed {below} times'}; aim 1.0")
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()

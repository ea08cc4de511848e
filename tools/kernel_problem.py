"""An attention problem in device memory for tools/bench-kernels: random tensors with structure, shuffled pages, a table to turn."""

import math

import cuda_kernels as ck
import numpy as np
import torch
from cuda_kernels import PAGE, RUN


def on_device(array):
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def tensors(length, heads, kv_heads, d, seed=0):
    """Queries, keys and values whose scores have structure, as the oracle's cases: every run of 32 keys has a direction, tiles of queries like
    a few of them and all like the first. On random scores no tile would be negligible."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    runs = -(-length // RUN)
    normal = lambda *shape: torch.randn(*shape, generator=g, device="cuda")
    way = normal(runs, kv_heads, d)
    way /= way.norm(dim=-1, keepdim=True)
    k = 0.2 * normal(length, kv_heads, d) + way.repeat_interleave(RUN, 0)[:length] * math.sqrt(d)
    q = 0.2 * normal(length, heads, d)
    way = way.repeat_interleave(heads // kv_heads, 1)
    q += 7.0 * way[0][None]
    v = normal(length, kv_heads, d)
    tiles = -(-length // PAGE)
    spread = lambda x: x.repeat_interleave(PAGE, 0)[:length]
    for _ in range(3):
        liked = spread(torch.randint(0, runs, (tiles, heads), generator=g, device="cuda"))
        strength = spread(3 + 3.5 * torch.rand(tiles, heads, 1, generator=g, device="cuda"))
        q += strength * torch.gather(way, 0, liked[..., None].expand(-1, -1, d))
    return tuple(x.to(torch.bfloat16) for x in (q, k, v))


class Problem:
    """Sequences of one length over shuffled pages. Prefill: the whole prompt; decode: one query each, the last."""

    def __init__(self, q, k, v, batch=1, decode=False):
        length, self.kv_heads, self.d = k.shape
        self.heads, self.length, self.batch, self.decode = q.shape[1], length, batch, decode
        pages = -(-length // PAGE)
        order = torch.from_numpy(np.random.default_rng(0).permutation(pages * batch)).cuda()
        pad = pages * PAGE - length
        pool = []
        for x in (k, v):
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad)).view(pages, PAGE, self.kv_heads, self.d).transpose(1, 2)
            out = torch.empty((pages * batch, self.kv_heads, PAGE, self.d), dtype=x.dtype, device="cuda")
            for i in range(batch):
                out[order[i * pages:(i + 1) * pages]] = x
            pool.append(out)
        self.k, self.v = pool
        self.q = q[-1:].repeat(batch, 1, 1).contiguous() if decode else q.contiguous()
        rows = 1 if decode else length
        seqs = [(i * rows, rows, length - rows, length, length, 0, i * pages, 0) for i in range(batch)]
        self.seqs, self.block_tables = on_device(np.array(seqs, np.int32)), order.int()
        self.out = torch.empty((rows * batch, self.heads, self.d), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.empty((rows * batch, self.heads), device="cuda")
        self.table = on_device(np.frombuffer(ck.table_bytes(1e-30), np.uint8).copy())
        self.counters = torch.zeros((batch, 2), dtype=torch.int64, device="cuda")
        self.gaps = torch.zeros(batch * 2 * ck.GAP_HISTOGRAM_BYTES, dtype=torch.uint8, device="cuda")
        tiles = -(-rows // PAGE)
        self.work = on_device(np.array([(i, t) for t in reversed(range(tiles)) for i in range(batch)], np.int32))
        self.entries = self.work.shape[0]
        self.max_runs = -(-length // RUN)
        self.scale = 1 / math.sqrt(self.d)
        self.workspace = torch.zeros(ck.decode_workspace_bytes(batch * self.kv_heads, ck.blocks(), self.max_runs, self.d), dtype=torch.uint8, device="cuda") if decode else None

    def params(self):
        at = lambda x: 0 if x is None else x.data_ptr()
        pointers = [at(x) for x in (self.q, self.k, self.v, self.out, self.lse, self.seqs, self.block_tables, self.table, self.counters, None, None, self.work, self.workspace)]
        return ck.params_bytes(pointers, self.heads * self.d, self.heads, self.kv_heads, self.batch, 0, self.scale, self.max_runs, at(self.gaps))

    def skip_at(self, s):
        self.table.copy_(on_device(np.frombuffer(ck.table_bytes(s), np.uint8).copy()))

    def share(self, run):
        """Of its votes, how many a launch skips."""
        self.counters.zero_()
        run()
        torch.cuda.synchronize()
        votes, skipped = self.counters.sum(0).tolist()
        return skipped / max(votes, 1)

    def find(self, run, share):
        """Sets the table so that about this share is skipped; returns the share reached."""
        low, high = -14.0, -1e-6
        for _ in range(18):
            middle = (low + high) / 2
            self.skip_at(math.exp(middle) * self.length)
            reached = self.share(run)
            low, high = (middle, high) if reached < share else (low, middle)
            if abs(reached - share) < 0.002:
                break
        return reached

"""The kernel half of tools/bench-gpu: runs tools/bench-kernels and tools/gpu_peers.py and sets their rows beside one another."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

PEERS = ("cuDNN", "FlashAttention-2", "FlashInfer FA3", "FlashInfer")


def rows_of_kernels(tools, cubins, quick):
    """Its own table goes to our output; its rows come back."""
    program = tools / "bench-kernels"
    if not program.exists():
        print("no tools/bench-kernels: no kernels timed")
        return []
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, program, "--cubins", cubins, "--json", file.name, *(["--quick"] if quick else []), "all"]
        if subprocess.run(command, check=False).returncode:
            print("tools/bench-kernels failed: no kernels timed")
            return []
        return json.loads(pathlib.Path(file.name).read_text(encoding="utf-8"))


def rows_of_peers(tools, quick):
    command = [sys.executable, tools / "gpu_peers.py", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        print("peer: " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "kind"))
    return rows


def table(rows):
    """The ratios of the targets. Above 1 is ahead."""
    read = next((row["gbytes"] for row in rows if row["kind"] == "bandwidth" and row["kernel"] == "read"), None)
    shapes = list(dict.fromkeys(row["shape"] for row in rows if row["kind"] in ("prefill", "decode") and "shape" in row))
    for shape in shapes:
        here = [row for row in rows if row.get("shape") == shape and row["kind"] in ("prefill", "decode") and "ms" in row]
        peers = {row["kernel"]: row for row in here if row["kernel"] in PEERS}
        own = [row for row in here if row["kernel"] not in PEERS]
        best_peer = min((row["ms"] for row in peers.values()), default=None)
        for row in own:
            words = []
            if row["what"] == "dense":
                words += [f"{peer['ms'] / row['ms']:.2f} x {name}" for name, peer in peers.items()]
                if row.get("gbytes") and read:
                    words.append(f"{row['gbytes'] / read:.0%} of reading")
            else:
                words.append(f"{row['times_dense']:.2f} x own dense")
                share = re.match(r"([\d.]+)%", row["what"])
                if row.get("of_bound") and share and float(share[1]) > 1:
                    words.append(f"{row['of_bound']:.0%} of 2/(2-s)")
                if best_peer:
                    words.append(f"{best_peer / row['ms']:.2f} x the best dense peer")
            rate = f"{row['tflops']:.0f} TFLOP/s" if row.get("tflops") else f"{row['gbytes']:.0f} GB/s" if row.get("gbytes") else ""
            print(f"{shape:32} {row['kernel']:12} {row['what']:24} {row['ms']:9.4f} ms {rate:13} {', '.join(words)}")


def kernels(tools, cubins, quick):
    """Runs, prints and gives all rows."""
    rows = rows_of_kernels(tools, cubins, quick) + rows_of_peers(tools, quick)
    print("\nkernels beside others, above 1 is ahead:")
    table(rows)
    return rows

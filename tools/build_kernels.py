"""Compiles the CUDA sources and records what the compiler made of each kernel; tools/build-kernels calls it.

A cubin is compiled again if its source, a file that the source includes, the options or the compiler changed. The manifest holds, for each
cubin, its SHA-256, and for each kernel its registers, static shared memory, stack, spills, threads of a block and notable instructions.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "kernels" / "cuda"
ARCHITECTURES = ["80", "87", "90a", "110a"]
OPTIONS = ["-std=c++17", "-O3", "-cubin", "-Werror", "all-warnings", "-Xptxas", "-v"]
# Machine instructions whose presence is recorded: matrix products, asynchronous copies, wide loads, dependent launch.
NOTABLE = ["HMMA", "HGMMA", "UTCHMMA", "LDGSTS", "LDSM", "UTMALDG", "UBLKCP", "ACQBULK", "PREEXIT", "LDG.128", "LDS.128", "STG.128"]


def with_includes(path, seen=None):
    """The file and every file of the project that it includes, in order of first mention."""
    seen = {} if seen is None else seen
    path = path.resolve()
    if path not in seen:
        text = seen[path] = path.read_text()
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
            with_includes(path.parent / name, seen)
    return seen


def architectures(source):
    """A source for some architectures only says so in a line `// Architectures: 90a`."""
    line = re.search(r"^// Architectures: (.+)$", source.read_text(), re.M)
    return line.group(1).replace(",", " ").split() if line else ARCHITECTURES


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def resources(log):
    """What `ptxas -v` says of each kernel."""
    kernels, name = {}, None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found.group(1)
            kernels[name] = {"registers": 0, "shared": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0}
        elif name and (found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            stack, stores, loads = map(int, found.groups())
            kernels[name].update(stack=stack, spill_stores=stores, spill_loads=loads)
        elif name and (found := re.search(r"Used (\d+) registers", line)):
            kernels[name]["registers"] = int(found.group(1))
            if found := re.search(r"(\d+) bytes smem", line):
                kernels[name]["shared"] = int(found.group(1))
    return kernels


def threads(image):
    """The most threads a block may have, by kernel: attribute 5 of the ELF sections `.nv.info.<kernel>`."""
    offset, = struct.unpack_from("<Q", image, 40)
    size, count, strings = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, offset + i * size) for i in range(count)]
    found = {}
    for name, _, _, _, at, length in headers:
        start = headers[strings][4] + name
        label = image[start : image.index(b"\0", start)].decode()
        if not label.startswith(".nv.info."):
            continue
        end = at + length
        while at + 4 <= end:
            form, attribute, value = struct.unpack_from("<BBH", image, at)
            if (form, attribute) == (4, 5):
                x, y, z = struct.unpack_from("<III", image, at + 4)
                found[label.removeprefix(".nv.info.")] = x * y * z
            at += 4 + (value if form == 4 else 0)
    return found


def instructions(sass):
    """Notable instructions by kernel."""
    found, name = {}, None
    for line in sass.splitlines():
        if match := re.search(r"Function : (\w+)", line):
            name = match.group(1)
            found[name] = set()
        elif name and (match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z0-9_.]+)", line)):
            parts = match.group(1).split(".")
            found[name].add(parts[0] + ".128" if parts[0] in ("LDG", "LDS", "STG") and "128" in parts else parts[0])
    return {name: [i for i in NOTABLE if i in seen] for name, seen in found.items()}


def compile_one(nvcc, source, architecture, key, out):
    began = time.monotonic()
    cubin = out / f"{source.stem}.sm_{architecture}.cubin"
    half_done = cubin.with_suffix(".tmp")
    log = run([nvcc, *OPTIONS, f"-arch=sm_{architecture}", "-o", half_done, source])
    half_done.replace(cubin)
    image = cubin.read_bytes()
    kernels, most, seen = resources(log), threads(image), instructions(run([nvcc.parent / "cuobjdump", "-sass", cubin]))
    for name, kernel in kernels.items():
        kernel["threads"] = most.get(name)
        kernel["instructions"] = seen[name]
    return {
        "file": cubin.name,
        "name": source.stem,
        "arch": architecture,
        "key": key,
        "sha256": hashlib.sha256(image).hexdigest(),
        "seconds": round(time.monotonic() - began, 1),
        "remarks": [line for line in log.splitlines() if re.search(r"\(C\d+\)|[Ww]arning", line)],
        "kernels": dict(sorted(kernels.items())),
    }


def fresh(entry, key, out):
    path = out / entry["file"] if entry else None
    return entry and entry["key"] == key and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]


def main():
    parser = argparse.ArgumentParser(prog="build-kernels")
    parser.add_argument("--nvcc", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only for this architecture; may be repeated")
    parser.add_argument("names", nargs="*", help="only these sources, without .cu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    manifest_path = options.out / "manifest.json"

    sources = {path.stem: path for path in sorted(SOURCES.glob("*.cu"))}
    if unknown := set(options.names) - set(sources):
        sys.exit(f"build-kernels: no source {', '.join(sorted(unknown))} in kernels/cuda")
    version = re.search(r"release .*", run([options.nvcc, "--version"])).group(0)
    try:
        old = {(e["name"], e["arch"]): e for e in json.loads(manifest_path.read_text())["cubins"]}
    except (OSError, ValueError, KeyError):
        old = {}

    entries, jobs = {}, []
    for name, source in sources.items():
        texts = "".join(f"{path.relative_to(ROOT)}\n{text}\n" for path, text in with_includes(source).items())
        for architecture in architectures(source):
            key = hashlib.sha256("\n".join([version, architecture, *OPTIONS, *NOTABLE, texts]).encode()).hexdigest()
            entry, wanted = old.get((name, architecture)), (name in options.names or not options.names) and architecture in (options.arch or ARCHITECTURES)
            if fresh(entry, key, options.out):
                entries[name, architecture] = entry
            elif wanted:
                # The longest first, so that none is left alone at the end.
                jobs.append((-(entry["seconds"] if entry else len(texts)), name, architecture, key))
    jobs.sort()

    failed = []
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(compile_one, options.nvcc, sources[name], architecture, key, options.out): (name, architecture) for _, name, architecture, key in jobs}
        for done in concurrent.futures.as_completed(running):
            try:
                entries[running[done]] = done.result()
            except RuntimeError as error:
                failed.append(str(error))

    # A cubin that no source stands behind any more must not be loaded.
    kept = [entries[key] for key in sorted(entries)]
    for stale in set(options.out.glob("*.cubin")) - {options.out / entry["file"] for entry in kept}:
        stale.unlink()
    complete = len(kept) == sum(len(architectures(source)) for source in sources.values())
    manifest = {"compiler": version, "options": OPTIONS, "complete": complete, "cubins": kept}
    half_done = manifest_path.with_suffix(".tmp")
    half_done.write_text(json.dumps(manifest, indent=1) + "\n")
    half_done.replace(manifest_path)
    if failed:
        sys.exit("\n".join(failed))
    size = sum((options.out / entry["file"]).stat().st_size for entry in kept)
    print(f"{len(kept)} cubins, {sum(len(e['kernels']) for e in kept)} kernels, {size / 1e6:.1f} MB; {len(jobs)} compiled in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

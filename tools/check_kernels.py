"""Holds the manifest of tools/build-kernels to kernels/cuda/limits.txt: registers, shared memory, threads, spills, instructions, remarks."""

import fnmatch
import json
import pathlib
import re
import sys

LIMITS = pathlib.Path(__file__).resolve().parent.parent / "kernels" / "cuda" / "limits.txt"
SINCE_SM_90 = {"ACQBULK", "PREEXIT"}


class Limits:
    """The rows of limits.txt."""

    def __init__(self, text):
        self.rows, self.spills = [], []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            try:
                if words[:1] == ["spill"]:
                    _, pattern, architecture, size = words
                    self.spills.append({"pattern": pattern, "arch": architecture, "bytes": int(size), "used": 0, "line": number})
                elif words:
                    pattern, registers, shared, threads, *instructions = words
                    threads = None if threads == "*" else [int(n) for n in threads.split("|")]
                    self.rows.append({"pattern": pattern, "registers": int(registers), "shared": int(shared), "threads": threads, "instructions": instructions, "fits": 0})
            except ValueError:
                sys.exit(f"{LIMITS.name}:{number}: cannot be read: {line}")

    def row(self, name):
        return next((row for row in self.rows if fnmatch.fnmatchcase(name, row["pattern"])), None)

    def spill(self, name, architecture):
        return next((s for s in self.spills if s["arch"] == architecture and fnmatch.fnmatchcase(name, s["pattern"])), None)


def faults(name, architecture, kernel, limits):
    """What is wrong with one kernel, in words."""
    row = limits.row(name)
    if row is None:
        yield "has no row in limits.txt"
        return
    row["fits"] += 1
    for what in ("registers", "shared"):
        if kernel[what] > row[what]:
            yield f"{kernel[what]} {what}, at most {row[what]}"
    if kernel["threads"] is None:
        yield "has no launch bounds"
    elif row["threads"] and kernel["threads"] not in row["threads"]:
        yield f"{kernel['threads']} threads, not {' or '.join(map(str, row['threads']))}"
    spilled = kernel["spill_stores"] + kernel["spill_loads"]
    allowed = limits.spill(name, architecture)
    if allowed:
        allowed["used"] = max(allowed["used"], spilled)
    if spilled > (allowed["bytes"] if allowed else 0):
        yield f"{spilled} bytes spilled" + (f", at most {allowed['bytes']}" if allowed else "")
    old = int(re.match(r"\d+", architecture).group(0)) < 90
    for instruction in row["instructions"]:
        if instruction not in kernel["instructions"] and not (old and instruction in SINCE_SM_90):
            yield f"no {instruction}"


def main():
    manifest = json.loads(pathlib.Path(sys.argv[1]).read_text())
    limits = Limits(LIMITS.read_text())
    wrong = count = 0
    for cubin in manifest["cubins"]:
        for remark in cubin["remarks"]:
            wrong += 1
            print(f"{cubin['file']}: {remark}")
        for name, kernel in cubin["kernels"].items():
            count += 1
            for fault in faults(name, cubin["arch"], kernel, limits):
                wrong += 1
                print(f"{cubin['file']}: {name}: {fault}")
    if manifest["complete"]:
        for row in limits.rows:
            if row["fits"] == 0 and row["pattern"] != "attn_*":
                wrong += 1
                print(f"limits.txt: no kernel fits {row['pattern']}")
    if count == 0:
        sys.exit("check-kernels: no kernels")
    for spill in limits.spills:
        if manifest["complete"] and spill["used"] < spill["bytes"]:
            print(f"note: limits.txt:{spill['line']}: {spill['pattern']} on {spill['arch']} spills {spill['used']} bytes, {spill['bytes']} are allowed")
    known = sum(1 for spill in limits.spills if spill["used"])
    print(f"{count} kernels within limits.txt, {known} known spills" if wrong == 0 else f"{wrong} faults in {count} kernels")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()

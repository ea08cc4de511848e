"""The attention kernels launched from Python through the CUDA driver: parameters and launch arithmetic of kernels/cuda/common/{params,launch}.h.

For tools/bench-kernels and tools/sanitize-kernels; everything is bfloat16.
"""

import ctypes
import glob
import os
import struct

PAGE, RUN, TABLE_ROWS = 128, 32, 64
GAP_HISTOGRAM_BYTES = 16 * (16 * 128 + 1)
cuda = ctypes.CDLL("libcuda.so.1")


def check(status, what):
    if status:
        raise RuntimeError(f"{what}: CUDA error {status}")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_char * 64)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


def attribute(number):
    """Of the first device."""
    value = ctypes.c_int()
    check(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0), "attribute")
    return value.value


def open_device():
    """The first device's primary context, which torch uses as well."""
    context = ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "context")
    check(cuda.cuCtxSetCurrent(context), "context")


class Kernels:
    """The cubins of one folder that fit the device."""

    def __init__(self, folder):
        major, minor = attribute(75), attribute(76)
        architecture = {(9, 0): "90a", (11, 0): "110a", (8, 7): "87"}.get((major, minor), f"{major}{minor}")
        self.roomy, self.modules, self.functions = major >= 9, [], {}
        for path in sorted(glob.glob(os.path.join(folder, f"attn_*.sm_{architecture}.cubin"))):
            module = ctypes.c_void_p()
            with open(path, "rb") as file:
                check(cuda.cuModuleLoadData(ctypes.byref(module), file.read()), path)
            self.modules.append(module)
        if not self.modules:
            raise SystemExit(f"no attention kernels for sm_{architecture} in {folder}: tools/build-kernels")

    def find(self, name, shared=0):
        """The kernel, allowed that much dynamic shared memory; None where there is none."""
        if name not in self.functions:
            self.functions[name] = None
            for module in self.modules:
                function = ctypes.c_void_p()
                if cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()) == 0:
                    if shared > 40 << 10:
                        check(cuda.cuFuncSetAttribute(function, 8, shared), name)
                    self.functions[name] = function
        return self.functions[name]


def launch(function, grid, threads, shared, params, attribute=None):
    """On the default stream. `attribute`: "early" (programmatic stream serialisation), "together" (cooperative) or none."""
    buffer = ctypes.create_string_buffer(params, len(params))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
    one = Attribute(id={"early": 6, "together": 2, None: 0}[attribute], value=struct.pack("<i", 1) + bytes(60))
    config = Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1), shared, None, ctypes.pointer(one), 1 if attribute else 0)
    check(cuda.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None), "launch")


def table_bytes(s):
    """One row: this S at every length."""
    return struct.pack(f"<ii{TABLE_ROWS}i{TABLE_ROWS}f", 1, 2**31 - 1, *[1] + [0] * (TABLE_ROWS - 1), *[s] + [0.0] * (TABLE_ROWS - 1))


def params_bytes(pointers, q_stride, heads, kv_heads, sequences, window, scale, max_runs, gaps):
    """AttnParams; `pointers` are its thirteen from q to workspace."""
    return struct.pack("<13Qq4if3iQ", *pointers, q_stride, heads, kv_heads, sequences, window, scale, max_runs, 0, 0, gaps)


def blocks():
    """Blocks of a decode launch: one a multiprocessor."""
    return min(attribute(16), 192)


def prefill(kernels, problem, form, kind):
    """A function that launches one kernel: `form` "mma" or "wgmma", `kind` dense, skip or measure. None where there is none."""
    d = problem.d
    if form == "wgmma":
        threads, shared = 384, (160 if d == 64 else 224) << 10
    else:
        threads, shared = 128 if d == 64 else 256, (5 if d == 256 else 10) * PAGE * d + (3 * PAGE * 4 if d == 128 else 0)
    function = kernels.find(f"attn_prefill_bf16_d{d}_{kind}_{form}", shared)
    if function is None:
        return None
    params, grid = problem.params(), (problem.heads, problem.entries, 1)
    return lambda: launch(function, grid, threads, shared, params)


def decode_workspace_bytes(segments, count, max_runs, d):
    pairs = (segments + count) * 8 * (d + 2) * 4
    runs = segments * max_runs * (512 + 32) + -(-segments * max_runs * 4 // 16) * 16
    return pairs + runs + segments * (32 + 4 + 8 + 4 + 32) + 32


def decode(kernels, problem, kind):
    """A function that launches one step: `kind` dense, one (skip in one launch), two (scan, then gather) or measure."""
    def part(name, attribute=None):
        like = "dense" if name == "measure" else name
        both = like in ("dense", "guarded")
        warps = 4 if both or problem.d == 256 or not kernels.roomy else 8
        stage = (RUN * 128 // problem.d if both else RUN) * problem.d * 2 * (2 if both else 1) + (640 if like in ("gather", "skip") else 0)
        room = 136 << 10 if not kernels.roomy else 207 << 10 if like == "skip" else 192 << 10
        shared = min(room // (warps * stage), 8) * stage * warps
        function = kernels.find(f"attn_decode_bf16_d{problem.d}_{name}", shared)
        params = problem.params()
        return lambda: launch(function, (blocks(), 1, 1), 32 * warps, shared, params, attribute)

    steps = {"one": [("skip", "together")], "two": [("scan", None), ("gather", "early")]}.get(kind, [(kind, None)])
    parts = [part(*step) for step in steps]

    def run():
        for go in parts:
            go()
    return run

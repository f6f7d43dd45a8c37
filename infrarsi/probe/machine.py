"""Print what machine this is as JSON: a stand-alone script for the training's own interpreter.

    python machine.py [--no-peaks]

The fields are those of the Hardware record (no host name), and `peaks`: matrix-multiplication FLOP/s by dtype, the best
of several shapes and repeats, so that it can serve as the denominator of MFU. Run it on an idle machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

CPU_ISA = (
    "sse4_2 avx avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8 "
    "asimd sve sve2 bf16 i8mm"
)
CPU_SIZES = (512, 1024, 1536, 2048)
CUDA_SIZES = (4096, 8192)
SECONDS_PER_SHAPE = 0.25
SLOW_PRODUCT = 0.3  # seconds of one product after which larger ones are not tried


def describe() -> dict[str, Any]:
    """Return the Hardware fields of this machine as this interpreter's torch sees it."""
    import torch

    cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if cuda else []
    model, flags = cpu_info()
    return {
        "cpu": model,
        "isa": [name for name in CPU_ISA.split() if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "accelerators": [device.name for device in devices],
        "accelerator_memory_bytes": min((int(device.total_memory) for device in devices), default=0),
        "links": links(len(devices)),
        "torch": torch.__version__,
        "driver": driver() if cuda else "",
        "python": platform.python_version(),
        "libraries": libraries(torch),
    }


def cpu_info() -> tuple[str, frozenset[str]]:
    """Return the CPU's name and its feature flags from /proc/cpuinfo (empty elsewhere than on Linux)."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model") and value.strip():
                    name = value.strip()
                elif key.strip() in ("flags", "Features") and not flags:
                    flags = frozenset(value.split())
    except OSError:
        pass
    return name, flags


def memory_bytes() -> int:
    """Return the memory of the machine, or of the control group if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes)


def links(devices: int) -> str:
    """Return how the accelerators are connected: "nvlink", "pcie", or "" for at most one."""
    if devices < 2:
        return ""
    return "nvlink" if " NV" in _output("nvidia-smi", "topo", "-m") else "pcie"


def driver() -> str:
    """Return the NVIDIA driver's version, "" where it cannot be asked."""
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return lines[0] if lines else ""


def libraries(torch: Any) -> list[str]:
    """Return the versions of the numerical libraries that torch uses, as "cuda 12.8"."""
    found = [
        f"{name} {version}" for name, version in (("cuda", torch.version.cuda), ("hip", torch.version.hip)) if version
    ]
    if torch.backends.cudnn.is_available():
        found.append(f"cudnn {torch.backends.cudnn.version()}")
    found += ["mkl"] if torch.backends.mkl.is_available() else []
    found += ["mkldnn"] if torch.backends.mkldnn.is_available() else []
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        found.append("nccl " + ".".join(str(part) for part in torch.cuda.nccl.version()))
    return found


def peaks() -> dict[str, float]:
    """Return measured FLOP/s of square matrix multiplications by dtype; one that is not supported is left out."""
    import torch

    cuda = torch.cuda.is_available()
    device, sizes = ("cuda", CUDA_SIZES) if cuda else ("cpu", CPU_SIZES)
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not cuda:
        del kinds["float16"]  # emulated on most CPUs: seconds per product, and never trained in
    best: dict[str, float] = {}
    for name, dtype in kinds.items():
        best[name] = _peak(torch, device, sizes, dtype)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
        best["tf32"] = _peak(torch, device, sizes, torch.float32)
    return {name: rate for name, rate in best.items() if rate > 0}


def _peak(torch: Any, device: str, sizes: Sequence[int], dtype: Any) -> float:
    """Return the best rate over the sizes, in ascending order, in FLOP/s.

    Larger ones are left out where a product takes long already: a dtype that the processor emulates, or a busy machine.
    """
    best = 0.0
    for size in sizes:
        rate = _rate(torch, device, size, dtype)
        best = max(best, rate)
        if not rate or 2.0 * size**3 / rate > SLOW_PRODUCT:
            break
    return best


def _rate(torch: Any, device: str, size: int, dtype: Any) -> float:
    """Return FLOP/s of the fastest of the products that fit into SECONDS_PER_SHAPE, at least one; 0 for no such dtype.

    The first one warms up, and counts only where it alone is slow.
    """
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    try:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        torch.mm(left[:64, :64], right[:64, :64])  # loads the library
        wait()
        begin = time.perf_counter()
        torch.mm(left, right, out=out)
        wait()
    except RuntimeError:
        return 0.0
    best = time.perf_counter() - begin
    if best > SLOW_PRODUCT:
        return float(2.0 * size**3 / best)
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        wait()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begin > SECONDS_PER_SHAPE:
            break
    return float(2.0 * size**3 / best)


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def main(argv: list[str]) -> int:
    """Print the JSON. The script's own folder goes off the path first: its modules are no top-level ones."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    value = describe()
    value["peaks"] = {} if "--no-peaks" in argv else peaks()
    sys.stdout.write(json.dumps(value) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

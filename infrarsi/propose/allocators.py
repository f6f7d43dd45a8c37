"""Memory allocators: the C library's thresholds, tcmalloc and jemalloc where installed, CUDA's segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from infrarsi.propose.catalogue import claims_of
from infrarsi.records import Assignment, Knob, Level

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
_LIBRARIES = (
    ("tcmalloc", ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so")),
    ("jemalloc", ("libjemalloc.so.2", "libjemalloc.so")),
)
_CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def allocator_knobs(environment: Mapping[str, str], kind: str, folders: Iterable[Path] | None = None) -> list[Knob]:
    """Return the allocator knobs of one kind of device; a variable that the user sets already is left alone."""
    if kind == "cpu":
        host = _host(environment, folders)
        return [host] if host is not None else []
    if any(name in environment for name in _CUDA_VARIABLES):
        return []
    segments = Level("expandable", (Assignment("env", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),))
    return [
        Knob(
            name="cuda_allocator",
            kind="env",
            levels=(Level("default"), segments),
            claims=((), claims_of("expandable")),
            numerics="bitwise",
            catalogue_id="expandable",
            why="segments that grow lose less memory to fragmentation",
        )
    ]


def find_allocators(folders: Iterable[Path] | None = None) -> dict[str, Path]:
    """Return the allocators that this machine has, by name."""
    found: dict[str, Path] = {}
    places = [Path(folder) for folder in _FOLDERS] if folders is None else list(folders)
    for name, files in _LIBRARIES:
        for path in (folder / file for file in files for folder in places):
            if path.is_file():
                found.setdefault(name, path)
    return found


def _host(environment: Mapping[str, str], folders: Iterable[Path] | None) -> Knob | None:
    """The C library returns large blocks to the system at once, and every step pays for their page faults again."""
    if "LD_PRELOAD" in environment or any(name.startswith("MALLOC_") for name in environment):
        return None
    keep = (Assignment("env", "MALLOC_MMAP_MAX_", "0"), Assignment("env", "MALLOC_TRIM_THRESHOLD_", "-1"))
    levels = [Level("system"), Level("system, keeping its memory", keep)]
    for name, path in find_allocators(folders).items():
        levels.append(Level(name, (Assignment("env", "LD_PRELOAD", str(path)),)))
    claim = claims_of("malloc")
    return Knob(
        name="allocator",
        kind="env",
        levels=tuple(levels),
        claims=((), *(claim for _ in levels[1:])),
        numerics="bitwise",
        catalogue_id="malloc",
        why="large tensors are allocated and freed at every step; an allocator that keeps them saves the page faults",
    )

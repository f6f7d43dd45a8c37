"""What the static check refuses by attribute, by text, or by what a word leads to, as tables."""

from __future__ import annotations

import re

from infrarsi.contract.staticnames import CLOCK, FRAMES, OBJECTS, PROCESS

# Attributes of any object: what leads from a value to the code around it, or to the hooks that the probe sits on.
ATTRIBUTES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("f_back", "f_globals", "f_locals", "f_builtins", "f_code", "f_trace", "tb_frame", "tb_next"),
            *("gi_frame", "cr_frame", "ag_frame", "__traceback__"),
        ),
        ("frames", FRAMES),
    ),
    **dict.fromkeys(
        (
            *("__subclasses__", "__globals__", "__builtins__", "__closure__", "__code__", "__defaults__"),
            *("__kwdefaults__", "__loader__", "__spec__", "__self__", "__func__", "cell_contents", "co_consts"),
        ),
        ("objects", OBJECTS),
    ),
    **dict.fromkeys(
        ("st_mtime", "st_mtime_ns", "st_atime", "st_atime_ns", "st_ctime", "st_ctime_ns"), ("clock", CLOCK)
    ),
    "__wrapped__": ("probe", "looks behind a wrapper, which may be the probe's"),
    **dict.fromkeys(
        (
            "_forward_pre_hooks",
            "_forward_hooks",
            "_backward_hooks",
            "_optimizer_step_pre_hooks",
            "_optimizer_step_post_hooks",
            "_global_optimizer_pre_hooks",
            "_global_optimizer_post_hooks",
            "_global_forward_pre_hooks",
            "_global_forward_hooks",
        ),
        ("probe", "reaches for hooks that are not its own"),
    ),
}

# Attributes that may be set on a library: its documented switches. All other assignments to a library's names replace
# code that the contract's other checks stand on.
SETTABLE = (
    "torch.backends.",
    "torch._dynamo.config.",
    "torch._inductor.config.",
    "torch._functorch.config.",
    "torch.cuda.amp.",
)
# Methods that the probe wraps; set on any object but `self` they take its place.
PROBED_METHODS = ("backward", "zero_grad", "clip_grad_norm_", "step", "__call__")
# Names of modules of the standard library that others use for modules of their own.
COMMON_WORDS = frozenset(("signal", "types", "resource", "traceback", "inspect", "socket", "pickle"))
# Modules that lead to ruled names when they are passed on under a name of one's own.
PASSED_ON = frozenset(
    (
        *("os", "sys", "gc", "inspect", "threading", "types", "builtins", "importlib", "multiprocessing", "shutil"),
        *("torch", "torch.cuda", "torch.autograd", "torch.utils", "torch.jit", "torch.compiler", "urllib"),
    )
)
# Every module imports some of these for itself and so hands them on: `torch.os`, `logging.time`.
LEAKED = frozenset(
    (
        *("os", "sys", "time", "gc", "ctypes", "inspect", "importlib", "builtins", "subprocess", "socket", "datetime"),
        *("threading", "types", "signal", "traceback", "resource", "atexit", "pickle", "shutil", "multiprocessing"),
        *("posix", "nt", "imp", "thread"),
    )
)

PROBE_TEXT = re.compile(r"infrarsi", re.IGNORECASE)
_PROBE_PLACE = "names the place where the probe is loaded"
# Looked for in the value of each string, pieces put together where that can be done without running anything.
TEXTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (PROBE_TEXT, "probe", "names the harness that measures it"),
    (re.compile(r"(site|user)customize|\.pth$"), "probe", _PROBE_PLACE),
    (re.compile(r"^(\.\.)?[./]*/(proc|sys)(/|$)|(^|/)\.\./(proc|sys)(/|$)|^proc$"), "process", PROCESS),
    (re.compile(r"^/dev/(fd|mem|rtc|ptp|kmsg|stdout|stderr)"), "process", PROCESS),
    (
        re.compile(
            r"^(TORCHELASTIC_|PET_|PYTHON[A-Z]+$|LD_(PRELOAD|LIBRARY_PATH|AUDIT)$|TORCHDYNAMO_DISABLE$|(TORCHINDUCTOR|TRITON)_CACHE_DIR$)"
        ),
        "environment",
        "reads the harness's variables",
    ),
    (
        re.compile(
            r"(?<!\w)(" + "|".join(a for a in ATTRIBUTES if a.startswith(("__", "f_", "tb_", "co_"))) + r")(?!\w)"
        ),
        "objects",
        "names what lies behind a function or frame",
    ),
)
# What to look for in files that are not Python (launch scripts, configurations).
OTHER_TEXTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (PROBE_TEXT, "probe", "names the harness that measures it"),
    (re.compile(r"(site|user)customize"), "probe", _PROBE_PLACE),
    (re.compile(r"(?<![\w/])/(proc|sys)/"), "process", PROCESS),
    (
        re.compile(r"\b(TORCHELASTIC_\w*|PYTHON[A-Z]+|LD_(PRELOAD|LIBRARY_PATH|AUDIT)|BASH_ENV)\b"),
        "environment",
        "sets what Python or the loader reads at start",
    ),
    (re.compile(r"!!python/|!!python:"), "dynamic", "makes Python objects out of text"),
)
ENVIRONMENT = ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv")

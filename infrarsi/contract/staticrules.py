"""What the static check refuses, as tables: full names, attributes, texts."""

from __future__ import annotations

import re

_CLOCK = "reads a clock; time is taken outside the run"
_PROCESS = "reaches outside the training process"
_NETWORK = "opens the network"
_FRAMES = "reads the frames of other code"
_NATIVE = "runs native code that nobody can read"
_IMPORTS = "changes how modules are found"
_DYNAMIC = "executes text as code"
_MEMORY = "changes how memory is accounted"
_GLOBAL_HOOKS = "hooks every module or optimizer, as the probe does"
_OBJECTS = "walks through the interpreter's objects"

# Longest prefix wins; an empty reason allows. A prefix covers the name itself and everything below it.
PREFIXES: dict[str, tuple[str, str]] = {
    "time": ("clock", _CLOCK),
    "timeit": ("clock", _CLOCK),
    "datetime": ("clock", _CLOCK),
    "torch.cuda.Event": ("clock", _CLOCK),
    "torch.Event": ("clock", _CLOCK),
    "torch.xpu.Event": ("clock", _CLOCK),
    "torch.mps.event": ("clock", _CLOCK),
    "torch.utils.benchmark": ("clock", _CLOCK),
    "torch.profiler": ("clock", _CLOCK),
    "torch.autograd.profiler": ("clock", _CLOCK),
    "os.times": ("clock", _CLOCK),
    "os._exit": ("process", "ends the process without the probe's last word"),
    "os.abort": ("process", "ends the process without the probe's last word"),
    "os.kill": ("process", _PROCESS),
    "os.killpg": ("process", _PROCESS),
    "os.getppid": ("process", _PROCESS),
    "os.fork": ("process", _PROCESS),
    "os.forkpty": ("process", _PROCESS),
    "os.system": ("process", _PROCESS),
    "os.popen": ("process", _PROCESS),
    **{f"os.exec{s}": ("process", _PROCESS) for s in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    **{f"os.spawn{s}": ("process", _PROCESS) for s in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    "os.posix_spawn": ("process", _PROCESS),
    "subprocess": ("process", _PROCESS),
    "pty": ("process", _PROCESS),
    "psutil": ("process", _PROCESS),
    "signal": ("process", _PROCESS),
    "atexit": ("process", _PROCESS),
    "faulthandler": ("process", _PROCESS),
    "resource": ("memory", _MEMORY),
    "torch.cuda.reset_peak_memory_stats": ("memory", _MEMORY),
    "torch.cuda.reset_max_memory_allocated": ("memory", _MEMORY),
    "torch.cuda.set_per_process_memory_fraction": ("memory", _MEMORY),
    "torch.cuda.memory.reset_peak_memory_stats": ("memory", _MEMORY),
    "torch.cuda.memory.set_per_process_memory_fraction": ("memory", _MEMORY),
    "socket": ("network", _NETWORK),
    "socketserver": ("network", _NETWORK),
    "http": ("network", _NETWORK),
    "urllib.request": ("network", _NETWORK),
    "requests": ("network", _NETWORK),
    "httpx": ("network", _NETWORK),
    "aiohttp": ("network", _NETWORK),
    "ftplib": ("network", _NETWORK),
    "smtplib": ("network", _NETWORK),
    "xmlrpc": ("network", _NETWORK),
    "sys._getframe": ("frames", _FRAMES),
    "sys._current_frames": ("frames", _FRAMES),
    "sys.settrace": ("frames", _FRAMES),
    "sys.setprofile": ("frames", _FRAMES),
    "sys.monitoring": ("frames", _FRAMES),
    "sys.addaudithook": ("frames", _FRAMES),
    "sys.orig_argv": ("frames", _FRAMES),
    "inspect.currentframe": ("frames", _FRAMES),
    "inspect.stack": ("frames", _FRAMES),
    "inspect.trace": ("frames", _FRAMES),
    "inspect.getouterframes": ("frames", _FRAMES),
    "inspect.getinnerframes": ("frames", _FRAMES),
    "traceback": ("frames", _FRAMES),
    "threading.settrace": ("frames", _FRAMES),
    "threading.setprofile": ("frames", _FRAMES),
    # Collecting at chosen moments is an honest option; looking through all objects is not.
    "gc": ("", ""),
    "gc.get_objects": ("objects", _OBJECTS),
    "gc.get_referrers": ("objects", _OBJECTS),
    "gc.get_referents": ("objects", _OBJECTS),
    "gc.callbacks": ("objects", _OBJECTS),
    "ctypes": ("native", _NATIVE),
    "cffi": ("native", _NATIVE),
    "torch.utils.cpp_extension": ("native", _NATIVE),
    "torch.ops.load_library": ("native", _NATIVE),
    "torch.classes.load_library": ("native", _NATIVE),
    "torch._C": ("native", "reaches into torch's internals"),
    "importlib": ("imports", _IMPORTS),
    "importlib.metadata": ("", ""),
    "imp": ("imports", _IMPORTS),
    "runpy": ("imports", _IMPORTS),
    "pkgutil": ("imports", _IMPORTS),
    "zipimport": ("imports", _IMPORTS),
    "site": ("imports", _IMPORTS),
    "sys.modules": ("imports", _IMPORTS),
    "sys.meta_path": ("imports", _IMPORTS),
    "sys.path_hooks": ("imports", _IMPORTS),
    "sys.path": ("imports", _IMPORTS),
    "builtins.__import__": ("imports", _IMPORTS),
    "sitecustomize": ("probe", "names the place where the probe is loaded"),
    "usercustomize": ("probe", "names the place where the probe is loaded"),
    "builtins.eval": ("dynamic", _DYNAMIC),
    "builtins.exec": ("dynamic", _DYNAMIC),
    "builtins.compile": ("dynamic", _DYNAMIC),
    "builtins.globals": ("dynamic", "writes names that nobody sees"),
    "builtins.breakpoint": ("dynamic", _DYNAMIC),
    "builtins": ("", ""),
    "code": ("dynamic", _DYNAMIC),
    "codeop": ("dynamic", _DYNAMIC),
    "marshal": ("dynamic", _DYNAMIC),
    "types.CodeType": ("dynamic", _DYNAMIC),
    "types.FunctionType": ("dynamic", _DYNAMIC),
    "torch.optim.optimizer.register_optimizer_step_pre_hook": ("probe", _GLOBAL_HOOKS),
    "torch.optim.optimizer.register_optimizer_step_post_hook": ("probe", _GLOBAL_HOOKS),
    "torch.nn.modules.module": ("probe", _GLOBAL_HOOKS),
    "torch.nn.modules.module.Module": ("", ""),
}

# Attributes of any object: what leads from a value to the code around it, or to the hooks that the probe sits on.
ATTRIBUTES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("f_back", "f_globals", "f_locals", "f_code", "tb_frame", "gi_frame"), ("frames", _FRAMES)),
    **dict.fromkeys(
        ("__subclasses__", "__globals__", "__builtins__", "__closure__", "__code__"), ("objects", _OBJECTS)
    ),
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
PROBED_METHODS = ("backward", "zero_grad", "clip_grad_norm_")

PROBE_TEXT = re.compile(r"infrarsi", re.IGNORECASE)
TEXTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (PROBE_TEXT, "probe", "names the harness that measures it"),
    (re.compile(r"(site|user)customize|\.pth$"), "probe", "names the place where the probe is loaded"),
    (re.compile(r"^/(proc|sys)(/|$)"), "process", _PROCESS),
    (
        re.compile(r"^(TORCHELASTIC_|PYTHON[A-Z]+$|LD_PRELOAD$|LD_LIBRARY_PATH$)"),
        "environment",
        "reads the harness's variables",
    ),
)
ENVIRONMENT = ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv")


def rule_for(name: str) -> tuple[str, str] | None:
    """Return (check, reason) of the longest prefix of a full name that a rule names; None where nothing is refused."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        found = PREFIXES.get(".".join(parts[:size]))
        if found is not None:
            return found if found[0] else None
    return None

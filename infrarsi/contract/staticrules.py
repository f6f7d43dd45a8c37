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
_MODE = "tells a run that is looked at from one that is not"
_FILES = "moves or relabels files while it trains"
_OBFUSCATED = "makes text that nobody can read"
_PICKLED = "loads objects that can be code"
_DISPATCH = "comes between torch and every operation"

_SPAWNING = (
    *("Process", "Pool", "Manager", "Pipe", "Queue", "SimpleQueue", "JoinableQueue", "Value", "Array", "get_context"),
    *("context", "pool", "process", "managers", "connection", "shared_memory", "sharedctypes", "resource_tracker"),
    *(
        "spawn",
        "forkserver",
        "popen_fork",
        "popen_spawn_posix",
        "util",
        "start_processes",
        "heap",
        "reduction",
        "queues",
    ),
)

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
    "sched": ("clock", _CLOCK),
    "asyncio": ("clock", _CLOCK),
    "select": ("clock", _CLOCK),
    "threading.Timer": ("clock", _CLOCK),
    "uuid.uuid1": ("clock", _CLOCK),
    "numpy.datetime64": ("clock", _CLOCK),
    "pandas.Timestamp": ("clock", _CLOCK),
    "triton.testing": ("clock", _CLOCK),
    "torch._inductor.runtime.benchmarking": ("clock", _CLOCK),
    "os.getloadavg": ("clock", _CLOCK),
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
    "os.posix_spawnp": ("process", _PROCESS),
    **{
        f"os.{name}": ("process", _PROCESS)
        for name in (
            *("setsid", "setpgid", "setpgrp", "nice", "setpriority", "sched_setscheduler", "sched_setparam"),
            *("register_at_fork", "pidfd_open", "dup", "dup2", "fdopen", "pipe", "pipe2", "write", "writev", "pwrite"),
            *("sendfile", "splice", "close", "closerange", "memfd_create", "unshare", "setns", "chroot"),
        )
    },
    **dict.fromkeys(
        (
            *("os.rename", "os.renames", "os.replace", "os.symlink", "os.link", "os.utime", "os.chmod", "os.chown"),
            *("os.mkfifo", "os.mknod", "shutil.move", "shutil.copystat", "shutil.copytree", "shutil.rmtree"),
        ),
        ("files", _FILES),
    ),
    **{f"{module}multiprocessing.{name}": ("process", _PROCESS) for module in ("", "torch.") for name in _SPAWNING},
    "concurrent.futures.ProcessPoolExecutor": ("process", _PROCESS),
    "torch.distributed.elastic": ("process", _PROCESS),
    "torch.distributed.run": ("process", _PROCESS),
    "torch.distributed.launcher": ("process", _PROCESS),
    "weakref.finalize": ("process", _PROCESS),
    "fcntl": ("process", _PROCESS),
    "subprocess": ("process", _PROCESS),
    "pty": ("process", _PROCESS),
    "psutil": ("process", _PROCESS),
    "signal": ("process", _PROCESS),
    "atexit": ("process", _PROCESS),
    "faulthandler": ("process", _PROCESS),
    "resource": ("memory", _MEMORY),
    "tracemalloc": ("memory", _MEMORY),
    "torch.cuda.memory.CUDAPluggableAllocator": ("memory", _MEMORY),
    "torch.cuda.memory.change_current_allocator": ("memory", _MEMORY),
    "torch.cuda.CUDAPluggableAllocator": ("memory", _MEMORY),
    "torch.cuda.reset_peak_memory_stats": ("memory", _MEMORY),
    "torch.cuda.reset_max_memory_allocated": ("memory", _MEMORY),
    "torch.cuda.set_per_process_memory_fraction": ("memory", _MEMORY),
    "torch.cuda.memory.reset_peak_memory_stats": ("memory", _MEMORY),
    "torch.cuda.memory.set_per_process_memory_fraction": ("memory", _MEMORY),
    "socket": ("network", _NETWORK),
    "socketserver": ("network", _NETWORK),
    "http": ("network", _NETWORK),
    "urllib": ("network", _NETWORK),
    "urllib.parse": ("", ""),
    "ssl": ("network", _NETWORK),
    "zmq": ("network", _NETWORK),
    "grpc": ("network", _NETWORK),
    "websockets": ("network", _NETWORK),
    "paramiko": ("network", _NETWORK),
    "torch.hub": ("network", _NETWORK),
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
    "sys.call_tracing": ("frames", _FRAMES),
    "sys.exc_info": ("frames", _FRAMES),
    "sys.last_traceback": ("frames", _FRAMES),
    "sys.excepthook": ("frames", _FRAMES),
    "sys.unraisablehook": ("frames", _FRAMES),
    "sys.breakpointhook": ("frames", _FRAMES),
    "bdb": ("frames", _FRAMES),
    "pdb": ("frames", _FRAMES),
    "trace": ("frames", _FRAMES),
    "profile": ("frames", _FRAMES),
    "cProfile": ("frames", _FRAMES),
    "logging.currentframe": ("frames", _FRAMES),
    "torch._dynamo.eval_frame": ("frames", _FRAMES),
    # A run that is compared with the baseline must be the run that is timed.
    **dict.fromkeys(
        (
            *("torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling", "torch.compiler.is_exporting"),
            *("torch._dynamo.is_compiling", "torch._utils.is_compiling", "torch.jit.is_tracing"),
            *("torch.jit.is_scripting", "torch.are_deterministic_algorithms_enabled"),
            *("torch.is_deterministic_algorithms_warn_only_enabled", "torch.get_deterministic_debug_mode"),
            *("torch.is_anomaly_enabled", "torch.is_inference_mode_enabled", "sys.gettrace", "sys.getprofile"),
            *("sys.flags", "torch.autograd.profiler._is_profiler_enabled"),
        ),
        ("mode", _MODE),
    ),
    "torch._dynamo.config.disable": ("mode", _MODE),
    "inspect.currentframe": ("frames", _FRAMES),
    "inspect.stack": ("frames", _FRAMES),
    "inspect.trace": ("frames", _FRAMES),
    "inspect.getouterframes": ("frames", _FRAMES),
    "inspect.getinnerframes": ("frames", _FRAMES),
    "traceback": ("frames", _FRAMES),
    "threading.settrace": ("frames", _FRAMES),
    "threading.setprofile": ("frames", _FRAMES),
    "threading.settrace_all_threads": ("frames", _FRAMES),
    "threading.setprofile_all_threads": ("frames", _FRAMES),
    "threading.excepthook": ("frames", _FRAMES),
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
    "torch.jit.load": ("native", _NATIVE),
    "torch.package": ("native", _NATIVE),
    "torch.export.load": ("native", _NATIVE),
    "torch._inductor.aoti_load_package": ("native", _NATIVE),
    "mmap": ("native", _NATIVE),
    "numpy.ctypeslib": ("native", _NATIVE),
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
    "sys.path_importer_cache": ("imports", _IMPORTS),
    "pkg_resources": ("imports", _IMPORTS),
    "types.ModuleType": ("imports", _IMPORTS),
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
    "builtins.locals": ("dynamic", "writes names that nobody sees"),
    "marshal": ("dynamic", _DYNAMIC),
    "ast": ("dynamic", _DYNAMIC),
    "ast.literal_eval": ("", ""),
    **dict.fromkeys(
        (
            *("pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle", "copyreg", "dill", "cloudpickle", "shelve"),
            *("joblib.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader"),
        ),
        ("dynamic", _PICKLED),
    ),
    **dict.fromkeys(
        ("base64", "binascii", "codecs.decode", "codecs.encode", "codecs.register"), ("dynamic", _OBFUSCATED)
    ),
    "builtins.bytes.fromhex": ("dynamic", _OBFUSCATED),
    "zlib.decompress": ("dynamic", _OBFUSCATED),
    **dict.fromkeys(("unittest", "mock", "pytest", "wrapt"), ("monkey-patch", "replaces parts of other code")),
    "builtins.type.__setattr__": ("monkey-patch", "sets attributes of classes"),
    "builtins.type.__delattr__": ("monkey-patch", "sets attributes of classes"),
    "torch.overrides": ("monkey-patch", _DISPATCH),
    "torch.utils._python_dispatch": ("monkey-patch", _DISPATCH),
    "types.CodeType": ("dynamic", _DYNAMIC),
    "types.FunctionType": ("dynamic", _DYNAMIC),
    "torch.optim.optimizer.register_optimizer_step_pre_hook": ("probe", _GLOBAL_HOOKS),
    "torch.optim.optimizer.register_optimizer_step_post_hook": ("probe", _GLOBAL_HOOKS),
    "torch.nn.modules.module": ("probe", _GLOBAL_HOOKS),
    "torch.nn.modules.module.Module": ("", ""),
}

# Attributes of any object: what leads from a value to the code around it, or to the hooks that the probe sits on.
ATTRIBUTES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("f_back", "f_globals", "f_locals", "f_builtins", "f_code", "f_trace", "tb_frame", "tb_next"),
            *("gi_frame", "cr_frame", "ag_frame", "__traceback__"),
        ),
        ("frames", _FRAMES),
    ),
    **dict.fromkeys(
        (
            *("__subclasses__", "__globals__", "__builtins__", "__closure__", "__code__", "__defaults__"),
            *("__kwdefaults__", "__loader__", "__spec__", "__self__", "__func__", "cell_contents", "co_consts"),
        ),
        ("objects", _OBJECTS),
    ),
    **dict.fromkeys(
        ("st_mtime", "st_mtime_ns", "st_atime", "st_atime_ns", "st_ctime", "st_ctime_ns"), ("clock", _CLOCK)
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
    (re.compile(r"^(\.\.)?[./]*/(proc|sys)(/|$)|(^|/)\.\./(proc|sys)(/|$)|^proc$"), "process", _PROCESS),
    (re.compile(r"^/dev/(fd|mem|rtc|ptp|kmsg|stdout|stderr)"), "process", _PROCESS),
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
    (re.compile(r"(?<![\w/])/(proc|sys)/"), "process", _PROCESS),
    (
        re.compile(r"\b(TORCHELASTIC_\w*|PYTHON[A-Z]+|LD_(PRELOAD|LIBRARY_PATH|AUDIT)|BASH_ENV)\b"),
        "environment",
        "sets what Python or the loader reads at start",
    ),
    (re.compile(r"!!python/|!!python:"), "dynamic", "makes Python objects out of text"),
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

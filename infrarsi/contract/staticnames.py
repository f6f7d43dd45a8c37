"""What the static check refuses by its full name: a table from modules and functions to check and reason."""

from __future__ import annotations

CLOCK = "reads a clock; time is taken outside the run"
PROCESS = "reaches outside the training process"
_NETWORK = "opens the network"
FRAMES = "reads the frames of other code"
_NATIVE = "runs native code that nobody can read"
_IMPORTS = "changes how modules are found"
_DYNAMIC = "executes text as code"
_MEMORY = "changes how memory is accounted"
_GLOBAL_HOOKS = "hooks every module or optimizer, as the probe does"
OBJECTS = "walks through the interpreter's objects"
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
    "time": ("clock", CLOCK),
    "timeit": ("clock", CLOCK),
    "datetime": ("clock", CLOCK),
    "torch.cuda.Event": ("clock", CLOCK),
    "torch.Event": ("clock", CLOCK),
    "torch.xpu.Event": ("clock", CLOCK),
    "torch.mps.event": ("clock", CLOCK),
    "torch.utils.benchmark": ("clock", CLOCK),
    "torch.profiler": ("clock", CLOCK),
    "torch.autograd.profiler": ("clock", CLOCK),
    "os.times": ("clock", CLOCK),
    "sched": ("clock", CLOCK),
    "asyncio": ("clock", CLOCK),
    "select": ("clock", CLOCK),
    "threading.Timer": ("clock", CLOCK),
    "uuid.uuid1": ("clock", CLOCK),
    "numpy.datetime64": ("clock", CLOCK),
    "pandas.Timestamp": ("clock", CLOCK),
    "triton.testing": ("clock", CLOCK),
    "torch._inductor.runtime.benchmarking": ("clock", CLOCK),
    "os.getloadavg": ("clock", CLOCK),
    "os._exit": ("process", "ends the process without the probe's last word"),
    "os.abort": ("process", "ends the process without the probe's last word"),
    "os.kill": ("process", PROCESS),
    "os.killpg": ("process", PROCESS),
    "os.getppid": ("process", PROCESS),
    "os.fork": ("process", PROCESS),
    "os.forkpty": ("process", PROCESS),
    "os.system": ("process", PROCESS),
    "os.popen": ("process", PROCESS),
    **{f"os.exec{s}": ("process", PROCESS) for s in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    **{f"os.spawn{s}": ("process", PROCESS) for s in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    "os.posix_spawn": ("process", PROCESS),
    "os.posix_spawnp": ("process", PROCESS),
    **{
        f"os.{name}": ("process", PROCESS)
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
    **{f"{module}multiprocessing.{name}": ("process", PROCESS) for module in ("", "torch.") for name in _SPAWNING},
    "concurrent.futures.ProcessPoolExecutor": ("process", PROCESS),
    "torch.distributed.elastic": ("process", PROCESS),
    "torch.distributed.run": ("process", PROCESS),
    "torch.distributed.launcher": ("process", PROCESS),
    "weakref.finalize": ("process", PROCESS),
    "fcntl": ("process", PROCESS),
    "subprocess": ("process", PROCESS),
    "pty": ("process", PROCESS),
    "psutil": ("process", PROCESS),
    "signal": ("process", PROCESS),
    "atexit": ("process", PROCESS),
    "faulthandler": ("process", PROCESS),
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
    "sys._getframe": ("frames", FRAMES),
    "sys._current_frames": ("frames", FRAMES),
    "sys.settrace": ("frames", FRAMES),
    "sys.setprofile": ("frames", FRAMES),
    "sys.monitoring": ("frames", FRAMES),
    "sys.addaudithook": ("frames", FRAMES),
    "sys.orig_argv": ("frames", FRAMES),
    "sys.call_tracing": ("frames", FRAMES),
    "sys.exc_info": ("frames", FRAMES),
    "sys.last_traceback": ("frames", FRAMES),
    "sys.excepthook": ("frames", FRAMES),
    "sys.unraisablehook": ("frames", FRAMES),
    "sys.breakpointhook": ("frames", FRAMES),
    "bdb": ("frames", FRAMES),
    "pdb": ("frames", FRAMES),
    "trace": ("frames", FRAMES),
    "profile": ("frames", FRAMES),
    "cProfile": ("frames", FRAMES),
    "logging.currentframe": ("frames", FRAMES),
    "torch._dynamo.eval_frame": ("frames", FRAMES),
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
    "inspect.currentframe": ("frames", FRAMES),
    "inspect.stack": ("frames", FRAMES),
    "inspect.trace": ("frames", FRAMES),
    "inspect.getouterframes": ("frames", FRAMES),
    "inspect.getinnerframes": ("frames", FRAMES),
    "traceback": ("frames", FRAMES),
    "threading.settrace": ("frames", FRAMES),
    "threading.setprofile": ("frames", FRAMES),
    "threading.settrace_all_threads": ("frames", FRAMES),
    "threading.setprofile_all_threads": ("frames", FRAMES),
    "threading.excepthook": ("frames", FRAMES),
    # Collecting at chosen moments is an honest option; looking through all objects is not.
    "gc": ("", ""),
    "gc.get_objects": ("objects", OBJECTS),
    "gc.get_referrers": ("objects", OBJECTS),
    "gc.get_referents": ("objects", OBJECTS),
    "gc.callbacks": ("objects", OBJECTS),
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


def rule_for(name: str) -> tuple[str, str] | None:
    """Return (check, reason) of the longest prefix of a full name that a rule names; None where nothing is refused."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        found = PREFIXES.get(".".join(parts[:size]))
        if found is not None:
            return found if found[0] else None
    return None

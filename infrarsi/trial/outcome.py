"""How an execution ended, from everything it left: the ranks' own errors, the launcher's log, exit code, deadlines.

torchrun's exit code is always 1, and the rank it blames is the first that died, which after an out-of-memory error is
often a peer whose communication broke. So all ranks' errors are read, and communication errors count last.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infrarsi.records import Outcome, OutcomeKind

LAST_WORDS = 300  # characters of what a program said before it ended
TOO_SHORT = "too-short"  # the phase of a program that ended by itself before its window was full
Deadline = Literal["", "startup", "progress", "total", "end"]


@dataclass(frozen=True)
class RankError:
    """One uncaught exception of one rank, in order of arrival. `oom` is the rank's own opinion."""

    rank: int | None
    kind: str
    message: str
    oom: bool = False
    phase: str = ""


@dataclass(frozen=True)
class Evidence:
    """What is known when an execution is over.

    `complete`: every rank reported its end. `deadline`: ours, which had passed. `log`: the launcher's output up to the
    moment we began to end it. `oom_kills`: processes that the kernel ended for memory meanwhile. `steps`: optimizer
    steps that all ranks closed, of `steps_wanted`. `exit_code` None: nobody was left to say.
    """

    exit_code: int | None
    log: str = ""
    errors: tuple[RankError, ...] = ()
    deadline: Deadline = ""
    cancelled: bool = False
    complete: bool = False
    steps: int = 0
    steps_wanted: int = 0
    oom_kills: int = 0
    memory_bytes: int | None = None
    waited_seconds: float = 0.0
    waiting_rank: int | None = None


# A true lack of memory, as allocators say it.
OOM = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|XPU out of memory|CUDA error: out of memory"
    r"|cuda runtime error \(2\)|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (?:can't|not enough memory)|\bMemoryError\b|std::bad_alloc|\bCannot allocate memory\b"
    r"|Unable to allocate [\d.]+ [KMGT]iB"
)
# The kernel's or the scheduler's word that a memory limit ended a process.
OOM_KILL = re.compile(r"oom[-_ ]kill|Out Of Memory|Memory cgroup out of memory|killed due to memory", re.IGNORECASE)
# Limits that read like a lack of memory and are not: shared memory, launch resources, kernels without such a shape.
LOOKALIKE = re.compile(
    r"shared memory|CUDNN_STATUS_NOT_SUPPORTED|too many resources requested|OutOfResources|out of resource"
    r"|invalid configuration argument|No space left on device|32-bit index|canUse32BitIndexMath|Too many open files"
)
COMMUNICATION = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|DistError|ProcessGroup|NCCL|ncclRemoteError|gloo"
    r"|Connection (?:reset|closed|refused)|Broken pipe|BrokenPipeError|ConnectionResetError|Socket Timeout"
    r"|collective operation timeout|Watchdog caught|store->get|TCPStore|SignalException|ChildFailedError"
    r"|RendezvousError"
)
PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use|failed to bind|port .{0,20}in use")
COMPILE = re.compile(
    r"BackendCompilerFailed|InductorError|CppCompileError|torch\._dynamo\.exc|InternalTorchDynamoError"
    r"|CompilationError|LoweringException|dynamo.*Unsupported"
)
SYNTAX = re.compile(r"\b(?:SyntaxError|IndentationError|TabError)\b")
IMPORT = re.compile(r"\b(?:ImportError|ModuleNotFoundError)\b")
ARGUMENTS = re.compile(
    r"error: (unrecognized arguments|argument |ambiguous option|the following arguments)"
    r"|Unknown config key|No such option"
)
TOGETHER = re.compile(r"expect_autograd_hooks_|static_graph.*(?:no_sync|unused)|marked as ready twice")
LAST_LINE = re.compile(
    r"^(?:\[(?:\w+?)?(\d+)\]:)?\s*([A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Failed|Exit)): ?(.*)$"
)
EXIT_CODE = re.compile(r"exitcode\s*:\s*(-?\d+)")
LOCAL_RANK = re.compile(r"\brank\s*:\s*(\d+) \(local_rank")
EMPTY_KINDS = re.compile(r"^(?:\[(?:\w+?)?(\d+)\]:)?\s*(MemoryError|KeyboardInterrupt)\s*$")


def classify(evidence: Evidence) -> Outcome:
    """Return how the execution ended: the first root error wins, and only a true lack of memory is `oom`."""
    if evidence.complete:
        return Outcome("ok", exit_code=evidence.exit_code)
    if evidence.cancelled:
        return Outcome("cancelled", "ended on request", exit_code=evidence.exit_code)
    own = _root(evidence.errors, evidence)
    if own is not None and not _is_communication(own):
        return _from_error(own, evidence)
    if (killed := _from_signal(evidence)) is not None:
        return killed
    logged = tuple(log_errors(evidence.log))
    root = _root((*evidence.errors, *logged), evidence)
    if root is not None and not _is_communication(root):
        return _from_error(root, evidence)
    if (refused := _from_text(evidence)) is not None:
        return refused
    if evidence.deadline:
        return _from_deadline(evidence)
    if root is not None:
        return _from_error(root, evidence)
    return _from_exit(evidence)


def log_errors(log: str) -> Iterator[RankError]:
    """Yield the last line of each Python traceback in a log, with its rank where torch prefixed it (`[rank1]:`)."""
    for line in log.splitlines():
        bare = EMPTY_KINDS.match(line)
        if bare:
            yield RankError(int(bare[1]) if bare[1] else None, bare[2], "")
            continue
        match = LAST_LINE.match(line)
        if match:
            yield RankError(int(match[1]) if match[1] else None, match[2], match[3].strip())


def _text(error: RankError) -> str:
    return f"{error.kind}: {error.message}"


def _is_oom(error: RankError) -> bool:
    text = _text(error)
    return (error.oom or OOM.search(text) is not None) and LOOKALIKE.search(text) is None


def _is_communication(error: RankError) -> bool:
    return not _is_oom(error) and COMMUNICATION.search(_text(error)) is not None and not PORT.search(_text(error))


def _root(errors: tuple[RankError, ...], evidence: Evidence) -> RankError | None:
    """The first error that is not the echo of another rank's; an out-of-memory error may arrive after its echoes."""
    root = [error for error in errors if not _is_communication(error)]
    return next(iter(root or errors), None)


def _from_error(error: RankError, evidence: Evidence) -> Outcome:
    text = _text(error).rstrip(": ")
    kind, phase = _kind_of(error, text)
    if error.kind == "SystemExit":
        text = f"the program ended itself with {error.message or 'an error'}"
    return Outcome(kind, text[:1000], error.rank, "", phase or error.phase, evidence.exit_code)


def _kind_of(error: RankError, text: str) -> tuple[OutcomeKind, str]:
    if _is_oom(error):
        return "oom", ""
    if PORT.search(text):
        return "lost", "rendezvous"
    if COMPILE.search(text):
        return "conflict", "compile"
    if SYNTAX.search(error.kind) or IMPORT.search(error.kind):
        return "conflict", "import"
    if TOGETHER.search(text):
        return "conflict", "training"
    return "crash", "communication" if _is_communication(error) else ""


def _from_signal(evidence: Evidence) -> Outcome | None:
    """A rank or the launcher ended by a signal; torchrun shows a rank's as `exitcode : -11`."""
    if evidence.deadline:
        return None
    # torchrun lists the failures of peers before the root cause; -15 is its own doing, it ends the peers so.
    blamed = evidence.log.rpartition("Root Cause (first observed failure)")[2]
    codes = [int(code) for code in EXIT_CODE.findall(blamed)]
    number = next((-code for code in codes if code < 0 and code != -signal.SIGTERM), 0)
    ranks = LOCAL_RANK.findall(blamed)
    rank = int(ranks[0]) if number and ranks else None
    if not number and evidence.exit_code is not None:
        code = evidence.exit_code
        # A shell or a sandbox in between turns a signal into 128 + its number.
        number = -code if code < 0 else (code - 128 if code in (132, 134, 135, 136, 137, 139) else 0)
    if not number:
        return None
    name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else f"signal {number}"
    if number == signal.SIGKILL and (evidence.oom_kills or OOM_KILL.search(evidence.log)):
        return Outcome("oom", "ended by the memory limit (SIGKILL)", rank, name, "", evidence.exit_code)
    if number == signal.SIGABRT and OOM.search(evidence.log) and not LOOKALIKE.search(evidence.log):
        return Outcome("oom", _line(evidence.log, OOM), rank, name, "", evidence.exit_code)
    who = "a rank" if codes else "the launcher"
    return Outcome("crash", f"{who} was ended by {name}", rank, name, "", evidence.exit_code)


def _from_text(evidence: Evidence) -> Outcome | None:
    """Errors that are no Python traceback: argparse, the allocator's abort, the memory limit's word, a taken port."""
    log = evidence.log
    if ARGUMENTS.search(log):
        return Outcome("conflict", _line(log, ARGUMENTS), None, "", "arguments", evidence.exit_code)
    if evidence.exit_code != 0 and OOM.search(log) and not LOOKALIKE.search(log):
        return Outcome("oom", _line(log, OOM), None, "", "", evidence.exit_code)
    if evidence.exit_code not in (0, None) and (evidence.oom_kills or OOM_KILL.search(log)):
        return Outcome("oom", "a process was ended by the memory limit", None, "SIGKILL", "", evidence.exit_code)
    if PORT.search(log):
        return Outcome("lost", _line(log, PORT), None, "", "rendezvous", evidence.exit_code)
    return None


def _line(log: str, pattern: re.Pattern[str]) -> str:
    return next((line.strip() for line in log.splitlines() if pattern.search(line)), "")[:1000]


def _from_deadline(evidence: Evidence) -> Outcome:
    seconds = f"{evidence.waited_seconds:.0f} s"
    rank = evidence.waiting_rank
    if evidence.deadline == "total":
        message = f"not done after {seconds} ({evidence.steps} of {evidence.steps_wanted} steps)"
        return Outcome("timeout", message, rank, "", "total", evidence.exit_code)
    if evidence.deadline == "startup":
        message = f"no optimizer step within {seconds} of the start"
        return Outcome("timeout", message, rank, "", "startup", evidence.exit_code)
    where = f"rank {rank}" if rank is not None else "a rank"
    message = f"{where} made no progress for {seconds} after step {evidence.steps}"
    return Outcome("hang", message, rank, "", evidence.deadline, evidence.exit_code)


def _from_exit(evidence: Evidence) -> Outcome:
    code = evidence.exit_code
    if code is None:
        return Outcome("lost", "the trial's guard was ended, and the trial with it")
    if code == 0:
        if evidence.steps == 0:
            message = "the program ended by itself and no optimizer step was seen"
            said = [line.strip() for line in evidence.log.splitlines() if line.strip()]
            message += f"; its last words: {said[-1][:LAST_WORDS]}" if said else ""
        else:
            message = (
                f"the program ended by itself after step {evidence.steps}; the window needs {evidence.steps_wanted}"
            )
        return Outcome("rejected", message, phase=TOO_SHORT, exit_code=0)
    lines = [line.strip() for line in evidence.log.splitlines() if line.strip()]
    message = lines[-1][:500] if lines else f"exit code {code}"
    return Outcome("crash", message, exit_code=code)

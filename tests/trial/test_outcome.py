"""The classifier's table: one row per way in which a training can end (R-C1)."""

import pytest

from infrarsi.trial.outcome import Evidence, RankError, classify, log_errors

CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.2 GiB is free."
)
CPU = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
TORCHRUN = """
E1201 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: {code}) local_rank: 1 (pid: 11) of binary
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 10)
------------------------------------------------------------
Root Cause (first observed failure):
[1]:
  time      : 2025-12-01_12:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 11)
  error_file: <N/A>
  traceback : {text}
============================================================
"""
SEGV = TORCHRUN.format(code=-11, text="Signal 11 (SIGSEGV) received by PID 11")
KILLED = TORCHRUN.format(code=-9, text="Signal 9 (SIGKILL) received by PID 11")
ABORT = TORCHRUN.format(code=-6, text="Signal 6 (SIGABRT) received by PID 11")
TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 3, in <module>\n    main()\n{}\n"
PEER = "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited\n"


def error(rank, kind, message, oom=False):
    return RankError(rank, kind, message, oom, "training")


TABLE = [
    # name, evidence, kind, rank, part of the message or signal or phase
    ("complete", Evidence(0, complete=True), "ok", None, ""),
    ("complete although the launcher was unhappy", Evidence(1, log="x", complete=True), "ok", None, ""),
    ("cancelled", Evidence(-15, cancelled=True), "cancelled", None, ""),
    # memory
    ("CUDA OOM", Evidence(1, errors=(error(0, "torch.OutOfMemoryError", CUDA, True),)), "oom", 0, "2.00 GiB"),
    (
        "CUDA OOM, in the log only",
        Evidence(1, log=TRACEBACK.format("[rank1]: torch.OutOfMemoryError: " + CUDA)),
        "oom",
        1,
        "",
    ),
    ("CPU allocator", Evidence(1, errors=(error(1, "RuntimeError", CPU),)), "oom", 1, "DefaultCPUAllocator"),
    ("MemoryError", Evidence(1, errors=(error(0, "MemoryError", ""),)), "oom", 0, "MemoryError"),
    ("MemoryError, in the log only", Evidence(1, log=TRACEBACK.format("MemoryError")), "oom", None, "MemoryError"),
    (
        "numpy",
        Evidence(1, errors=(error(0, "numpy.core._exceptions._ArrayMemoryError", "Unable to allocate 2.0 GiB"),)),
        "oom",
        0,
        "",
    ),
    ("fork", Evidence(1, errors=(error(0, "OSError", "[Errno 12] Cannot allocate memory"),)), "oom", 0, ""),
    (
        "bad_alloc",
        Evidence(1, log="terminate called after throwing an instance of 'std::bad_alloc'\n" + ABORT),
        "oom",
        1,
        "SIGABRT",
    ),
    ("SIGKILL by a memory limit", Evidence(1, log=KILLED, oom_kills=1), "oom", 1, "SIGKILL"),
    (
        "SIGKILL, the scheduler says why",
        Evidence(1, log="srun: error: node: task 1: Out Of Memory\n" + KILLED),
        "oom",
        1,
        "SIGKILL",
    ),
    ("137 by a memory limit", Evidence(137, oom_kills=1), "oom", None, "SIGKILL"),
    ("SIGKILL by somebody", Evidence(1, log=KILLED), "crash", 1, "SIGKILL"),
    ("137 by somebody", Evidence(137), "crash", None, "SIGKILL"),
    # the first root error wins
    (
        "a peer's connection broke first",
        Evidence(
            1,
            errors=(
                error(0, "torch.distributed.DistBackendError", "NCCL timeout"),
                error(1, "RuntimeError", CPU, True),
            ),
        ),
        "oom",
        1,
        "DefaultCPUAllocator",
    ),
    (
        "OOM in the log, after the peer's echo",
        Evidence(1, log=PEER + "[rank1]: torch.OutOfMemoryError: " + CUDA),
        "oom",
        1,
        "",
    ),
    (
        "two errors",
        Evidence(1, errors=(error(1, "ValueError", "first"), error(0, "KeyError", "second"))),
        "crash",
        1,
        "first",
    ),
    (
        "gloo only",
        Evidence(1, errors=(error(0, "RuntimeError", "[gloo/tcp/pair.cc:534] Connection closed by peer"),)),
        "crash",
        0,
        "communication",
    ),
    ("a peer died of SIGSEGV", Evidence(1, log=PEER + SEGV), "crash", 1, "SIGSEGV"),
    (
        "OOM on one rank while the others waited into our deadline",
        Evidence(-9, errors=(error(1, "RuntimeError", CPU, True),), deadline="progress", waited_seconds=5),
        "oom",
        1,
        "",
    ),
    # what looks like a lack of memory
    (
        "cuDNN batch limit",
        Evidence(1, errors=(error(0, "RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),)),
        "crash",
        0,
        "CUDNN",
    ),
    (
        "launch limit",
        Evidence(1, errors=(error(0, "RuntimeError", "CUDA error: too many resources requested for launch"),)),
        "crash",
        0,
        "",
    ),
    (
        "32-bit index",
        Evidence(1, errors=(error(0, "RuntimeError", "input tensor must fit into 32-bit index math"),)),
        "crash",
        0,
        "",
    ),
    (
        "a batch limit of the program",
        Evidence(1, errors=(error(0, "ValueError", "batch size 4096 is out of memory range [1, 64]"),)),
        "crash",
        0,
        "4096",
    ),
    (
        "shared memory",
        Evidence(
            1,
            errors=(
                error(
                    0, "RuntimeError", "DataLoader worker (pid 5) is killed by signal: Bus error. out of shared memory"
                ),
            ),
        ),
        "crash",
        0,
        "",
    ),
    ("disk", Evidence(1, errors=(error(0, "OSError", "[Errno 28] No space left on device"),)), "crash", 0, ""),
    # time
    ("start-up", Evidence(-9, deadline="startup", waited_seconds=300), "timeout", None, "300 s"),
    ("total", Evidence(-9, deadline="total", waited_seconds=1800, steps=4, steps_wanted=9), "timeout", None, "4 of 9"),
    ("hang", Evidence(-9, deadline="progress", waited_seconds=120, waiting_rank=1, steps=3), "hang", 1, "after step 3"),
    ("hang at the end", Evidence(-9, deadline="end", waited_seconds=60), "hang", None, "end"),
    (
        "hang, noise of our own SIGTERM",
        Evidence(1, log="SignalException: Process 1 got signal: 15", deadline="progress"),
        "hang",
        None,
        "",
    ),
    # does not go together
    (
        "compile",
        Evidence(1, errors=(error(0, "torch._dynamo.exc.BackendCompilerFailed", "backend='inductor' raised"),)),
        "conflict",
        0,
        "compile",
    ),
    (
        "inductor",
        Evidence(1, errors=(error(0, "torch._inductor.exc.InductorError", "CppCompileError: C++ compile error"),)),
        "conflict",
        0,
        "compile",
    ),
    (
        "triton",
        Evidence(1, errors=(error(0, "triton.compiler.errors.CompilationError", "at 3:1"),)),
        "conflict",
        0,
        "compile",
    ),
    (
        "import",
        Evidence(1, log=TRACEBACK.format("ModuleNotFoundError: No module named 'flash_attn'")),
        "conflict",
        None,
        "import",
    ),
    (
        "syntax",
        Evidence(1, log="  File 'train.py', line 9\n    def (:\nSyntaxError: invalid syntax"),
        "conflict",
        None,
        "import",
    ),
    (
        "unknown flag",
        Evidence(1, log="usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --fused"),
        "conflict",
        None,
        "arguments",
    ),
    (
        "static graph",
        Evidence(1, errors=(error(0, "RuntimeError", "Expected expect_autograd_hooks_ to be true"),)),
        "conflict",
        0,
        "",
    ),
    # signals
    ("SIGSEGV behind torchrun", Evidence(1, log=SEGV), "crash", 1, "SIGSEGV"),
    ("SIGSEGV, plain", Evidence(-11), "crash", None, "SIGSEGV"),
    ("SIGSEGV, through a shell", Evidence(139), "crash", None, "SIGSEGV"),
    ("abort", Evidence(1, log=ABORT), "crash", 1, "SIGABRT"),
    # the environment
    (
        "port",
        Evidence(
            1,
            log=TRACEBACK.format("torch.distributed.DistNetworkError: port: 29500, EADDRINUSE, address already in use"),
        ),
        "lost",
        None,
        "rendezvous",
    ),
    ("guard ended", Evidence(None), "lost", None, "guard"),
    # ends by itself
    ("nothing trained", Evidence(0), "rejected", None, "no optimizer step"),
    ("too short", Evidence(0, steps=5, steps_wanted=9), "rejected", None, "after step 5"),
    (
        "gave up quietly",
        Evidence(0, log="start\nneeds 2 GPUs to run\n\n"),
        "rejected",
        None,
        "words: needs 2 GPUs to run",
    ),
    ("exit code", Evidence(7, log="something went wrong\n\n"), "crash", None, "something went wrong"),
    ("exit code and silence", Evidence(7), "crash", None, "exit code 7"),
    ("SystemExit", Evidence(3, errors=(error(0, "SystemExit", "3"),)), "crash", 0, "ended itself"),
]


@pytest.mark.parametrize(
    ("evidence", "kind", "rank", "part"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_table(evidence, kind, rank, part):
    """R-C1, R-C2, R-D5."""
    outcome = classify(evidence)
    assert (outcome.kind, outcome.rank) == (kind, rank), outcome
    assert part in f"{outcome.message} {outcome.signal} {outcome.phase}"


def test_log_errors_reads_the_rank():
    log = (
        "[rank3]: Traceback (most recent call last):\n[rank3]:   File 'x'\n[rank3]: ValueError: no: really\nan Error: x"
    )
    assert list(log_errors(log)) == [RankError(3, "ValueError", "no: really")]

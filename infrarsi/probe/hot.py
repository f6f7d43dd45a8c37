"""Where the main thread spends its time: its innermost line inside the worktree, sampled from another thread."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable

PERIOD_SECONDS = 0.004
KEEP = 20


class HotLines:
    """Samples from `start` to `stop`. The interpreter lock is free while torch works, so kernels are seen too."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self._root = root + os.sep
        self._clock = clock
        self._begin = self._end = 0.0
        self._main = threading.main_thread().ident
        self._counts: Counter[tuple[str, int]] = Counter()
        self._samples = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="infrarsi-hot-lines", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._begin = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; may be called when it never began."""
        self._end = self._clock()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def seconds(self) -> list[tuple[str, float]]:
        """Return ("train.py:12", seconds of the main thread there), the largest first."""
        each = (self._end - self._begin) / max(1, self._samples)
        return [(f"{path}:{line}", count * each) for (path, line), count in self._counts.most_common(KEEP)]

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_SECONDS):
            frame = sys._current_frames().get(self._main or 0)
            self._samples += 1
            while frame is not None:
                path = os.path.join(os.getcwd(), frame.f_code.co_filename)
                if path.startswith(self._root):
                    self._counts[(path[len(self._root) :], frame.f_lineno)] += 1
                    break
                frame = frame.f_back

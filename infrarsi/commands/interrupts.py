"""^C and SIGTERM as one thing: a KeyboardInterrupt, also where a library made an error of its own out of it.

Extension modules do that (pydantic-core makes a SchemaError of what happens while it builds a schema, C imports make an
ImportError of it), and a clean stop would then be reported as a crash.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT and SIGTERM, and for whatever escapes after one of them came.

    A SIGINT that was ignored at the start (a background job) stays ignored. Off the main thread nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    wanted = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    previous = {s: signal.signal(s, stop) for s in wanted}
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)

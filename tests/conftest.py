"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Take ^C as usual also where a script started the tests in the background, which makes them ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

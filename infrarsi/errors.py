"""Errors that reach a person: what happened, why, and the next command.

Exit codes follow git: 0 success, 1 a negative verdict, 2 wrong usage, 128 the environment.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every `git infrarsi` verb."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    ENVIRONMENT = 128
    INTERRUPTED = 130


class InfrarsiError(Exception):
    """An expected failure, shown as three lines and never as a traceback.

    `what` is the sentence a person reads first, `why` the fact behind it, `hint` the next command.
    """

    exit_code: ExitCode = ExitCode.ENVIRONMENT

    def __init__(self, what: str, *, why: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.code = code or type(self).__name__


class UsageError(InfrarsiError):
    """The command line or a configuration file asks for something that does not exist."""

    exit_code = ExitCode.USAGE


class ContractError(InfrarsiError):
    """The contract is missing, was changed, or forbids what was asked."""


class GitError(InfrarsiError):
    """The repository is not in a state this verb can work with."""


class TrialError(InfrarsiError):
    """A training run could not be started or observed."""


class NegativeVerdict(InfrarsiError):
    """The work was done and the answer is no: nothing accepted, or a commit does not verify."""

    exit_code = ExitCode.NEGATIVE


class Interrupted(InfrarsiError):
    """The user stopped the work; `hint` resumes it."""

    exit_code = ExitCode.INTERRUPTED

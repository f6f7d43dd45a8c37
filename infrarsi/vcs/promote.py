"""The promoted commit: the user's identity, the user's signature, on a branch that nobody has checked out."""

from __future__ import annotations

from infrarsi.errors import GitError
from infrarsi.vcs import parse
from infrarsi.vcs.commits import write_commit
from infrarsi.vcs.door import ABSENT, Repository
from infrarsi.vcs.signing import signing_setup
from infrarsi.vcs.trust import verify_commit

BRANCH = "infrarsi/promoted"


def promote(repo: Repository, *, base: str, tree: str, message: str, branch: str = BRANCH) -> str:
    """Sign a commit of `tree` on `base`, point `branch` at it, and return it.

    The branch may exist if nothing is lost by moving it: its tip must be in `base` or in HEAD. Raises GitError, with
    nothing moved, for a branch that is checked out or holds other work, and where signing fails.
    """
    ref = f"refs/heads/{branch}"
    repo.git("check-ref-format", ref)
    _require_trailers(message)
    tip = repo.read_ref(ref)
    if tip is not None and not any(repo.is_ancestor(tip, commit) for commit in (base, repo.head())):
        raise GitError(
            f"branch {branch} holds commits that are not merged",
            why=f"it is at {tip[:12]}",
            hint=f"git branch -m {branch} {branch}-{tip[:7]}, or: git infrarsi apply --branch NAME",
            code="branch-taken",
        )
    repo.require_free(ref)
    signing_setup(repo)
    commit = write_commit(repo, tree, [base], message, sign=True, as_tool=False)
    check = verify_commit(repo, commit)
    if check.status in ("bad", "none"):
        raise GitError("git did not sign the commit", why=check.message, hint="git commit -S", code="signing-failed")
    repo.update_ref(ref, commit, tip or ABSENT, why="infrarsi: promote")
    return commit


def _require_trailers(message: str) -> None:
    """Refuse a message whose trailers would be read otherwise than they were written (R-I2)."""
    keys = [key.lower() for key, _ in parse.trailers(message) if key.lower().startswith("infrarsi-")]
    written = sum(line.lower().startswith("infrarsi-") for line in message.splitlines())
    if len(keys) != len(set(keys)) or written != len(keys):
        raise GitError("the commit message holds a trailer twice or out of place", why="; ".join(keys), code="trailers")

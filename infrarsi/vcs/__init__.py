"""The one door to git: a clean environment, candidate commits, worktrees, evidence, signatures, notes.

Nothing here moves the user's HEAD, index or files. `process` runs programs, `door.Repository` asks git, the other
modules each do one thing with it. They drive the git program: it is right on SHA-256 and partial-clone repositories,
where the libraries fail, and obeys the user's own configuration where that matters (who signs, and how).
"""

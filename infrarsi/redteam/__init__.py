"""The red-team suite as data: every known cheat, and honest changes, as small edits of the two shipped trainers.

Nothing here runs anything. `commands.selftest` builds each case's commit as a run does and judges it with the run's own
checks. A case that a check misses stays in, and shows as missed.
"""

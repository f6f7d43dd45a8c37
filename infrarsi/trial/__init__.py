"""Try it: run one candidate's training under the probe, on the parent's clock, and leave nothing behind.

`plan` says what is executed, `local` executes it under `guard` (a process that ends the whole tree whatever happens to
us), `collect` turns the ranks' messages into records, `outcome` says how it ended, `execute` is the blocking call.
"""

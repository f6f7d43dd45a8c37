"""The contract: what must stay the same while a training is made faster, and the checks that hold a candidate to it.

`infrarsi.toml` is the intent, written by people (`intent`); `infrarsi.lock` is the facts, written by us (`lock`).
Ring 1 looks at the candidate's tree before it runs (`scope`, `static`), ring 2 at what its ranks reported
(`invariants`, with the tolerances of `envelopes`); `data` locks what the training reads. `command`, `flags`, `entry`,
`configfile` and `sentence` read a repository and a person's wish into an intent. Nothing here runs a process or
touches git.
"""

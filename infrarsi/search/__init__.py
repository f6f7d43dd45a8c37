"""What to try next: one model over all trials, as an Optuna sampler behind a small ask-and-tell interface.

`space` codes candidates, `priors` turns claims into numbers, `beliefs` fits the models of `infrarsi.stats`, `suggest`
chooses, `pricing` buys memory with milliseconds, `stopping` ends. `study.OptunaSearch` is what a run talks to.
"""

"""Numbers in, numbers out: noise, the paired verdict, and the models of time, memory and crashes.

Nothing here knows of trials, git or torch. Times enter as seconds and leave as ratios; models work on logarithms
relative to the baseline, so that an effect of -0.1 is "about 10 % less". scipy is imported inside functions: the
command line must not pay for it.
"""

"""What could be tried: launch knobs, catalogue codemods and patch files, each with its claims and numerics class."""

"""InfraRSI: verified speed-ups of distributed LLM training, as git commits."""

__version__ = "0.1.0"

"""Measuring the search: simulated training jobs, rival samplers, and the comparison of both."""

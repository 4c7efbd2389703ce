"""The measurements behind tools/benchmark.py, one file per subject."""

"""The measurements behind tools/benchmark.py, one file a subject."""

"""One program per file; the only place that knows the command line."""

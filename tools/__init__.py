"""One program a file; the only place that knows the command line."""

"""The ops in plain torch: their definition, and the CPU path."""

"""The ops on the CUDA kernels: the names and results of ops.reference."""

"""The operators on vectorised C++ for the cores of a CPU (csrc/cpu/)."""

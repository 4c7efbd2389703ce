"""Shapes and gradients of the CUDA operators, for torch.compile and autograd.

Imported once they are loaded. Sections as in csrc/bindings.cpp: index, voxelize, sparse max
pooling, dense, convolution, boxes.
"""

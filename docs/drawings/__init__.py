"""The drawings of sparse_convolution.md, made from what the operators compute."""

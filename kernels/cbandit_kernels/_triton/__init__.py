"""Triton kernels; private, imported only by the branch that launches them."""

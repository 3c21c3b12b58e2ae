"""Triton kernels; private, and imported only by the branch that launches them."""

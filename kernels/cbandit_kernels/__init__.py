"""Kernels of the posterior's inner loop, each beside its plain-torch reference."""

from cbandit_kernels.forms import (
    KINDS,
    kernel_columns,
    kernel_columns_ref,
    kernel_matrix_ref,
)

__all__ = ["KINDS", "kernel_columns", "kernel_columns_ref", "kernel_matrix_ref"]

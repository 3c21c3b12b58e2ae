"""GPU kernels and their references."""

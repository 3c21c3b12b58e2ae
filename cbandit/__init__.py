"""Constrained bandits on PyTorch."""

"""Experiments: several policies on one problem, from settings to tables and figures."""

"""Where the numbers are kept: one engine a group of functions, one answer from all."""

"""The best distribution over actions: a linear programme with few constraints."""

"""How joint samples of a belief are drawn."""

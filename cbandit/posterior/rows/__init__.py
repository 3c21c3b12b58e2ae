"""Where kernel rows come from: stored, recomputed, or products of small factors."""

"""The parts of stage-wise policies: the safe action and what is known of it, inflated
bounds, models (linear functions, arms apart, finite classes) with the search of the
best action or distribution that is surely feasible under each, and their base."""

"""The parts that stage-wise policies share: the safe action, what is known of it,
widths and what inflates them, and the rays from the safe action on which the best safe
point is looked for."""

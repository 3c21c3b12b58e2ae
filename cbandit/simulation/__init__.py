"""A policy plays a problem: the loop, and the account of what came of it."""

"""Where the numbers of a posterior are kept.

Four engines over sets and one over boxes, behind one protocol; an engine is the only
thing of the posterior that changes in place.
"""

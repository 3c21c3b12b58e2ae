"""The concerns of a round, one file each; see :mod:`cbandit.policies.round`."""

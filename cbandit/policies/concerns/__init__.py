"""The concerns of a round, a file each; see :mod:`cbandit.policies.round`."""

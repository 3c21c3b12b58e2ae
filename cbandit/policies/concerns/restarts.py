"""When epochs begin: the keyword ``restart=``."""

from __future__ import annotations


def epoch_start(restart: int | str | None, t: int) -> int:
    """Return the first round of round ``t``'s epoch.

    Args:
        restart: how many rounds an epoch has; ``"doubling"``: epoch ``i`` is the rounds
            from ``2^i`` to ``2^(i+1) - 1``; ``None``: there is one epoch.
        t: the round, from 1.
    """
    if restart is None:
        return 1
    if isinstance(restart, str):
        return 1 << (t.bit_length() - 1)
    return t - (t - 1) % restart

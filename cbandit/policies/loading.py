"""Loading a policy from the file in which it was saved."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cbandit._core import checkpoint, checks, distributed, graph
from cbandit._core.names import trusted
from cbandit.actions import Actions, checked_actions
from cbandit.errors import CheckpointError
from cbandit.policies.base import Policy
from cbandit.policies.checks import array_type
from cbandit.policies.saving import Files


def load(
    path: str | os.PathLike[str], trust: object = (), actions: Actions | None = None
) -> Policy:
    """Load a policy that ``policy.save(path)`` wrote; it continues bit for bit.

    No code from the file is run. The file holds numbers, and names of classes and
    functions. Names from cbandit, and kernels, priors and constraints of gpytorch and
    botorch, are accepted. All others are refused unless you pass them as ``trust``:
    your own kernels, policies, schedules, thresholds, draws and penalties.

    Args:
        path: the file.
        trust: a tuple of what the file may name too: classes and functions; objects,
            which stand for their classes; modules, which stand for all that is written
            in them. Trust only code that is safe to call with any arguments.
        actions: the set, if ``policy.save(path, actions=False)`` left it out. It must
            be the same set: a digest is compared.

    Example:
        >>> policy.save("state.ckpt")                               # doctest: +SKIP
        >>> policy = cb.load("state.ckpt", trust=(my_schedule,))    # doctest: +SKIP
    """
    if actions is not None:
        checked_actions(actions)

    def set_for(label: Sequence[str]) -> Actions:
        """Return the given set if it has the label of the saved one, or raise."""
        if actions is None:
            raise CheckpointError(
                "it was saved without its set: load(path, actions=...) takes that set"
            )
        mark, device, dtype = label
        place = checks.device(device)
        moved = actions.to(place, array_type(dtype, place))
        if graph.mark_of(moved) != mark:
            raise CheckpointError(
                f"actions must be the policy's set, as it was saved; {actions!r} is "
                "another set"
            )
        return moved

    files, ranks = Files(), distributed.current()
    policy: Policy = checkpoint.read(
        path, "policy", Policy, trusted(trust), ranks, files.digests, set_for
    )
    if actions is not None:
        set_for(files.label(policy.actions, policy.device, policy.dtype))
    policy._files = files
    return policy

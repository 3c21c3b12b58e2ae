"""Pictures of digits: choose which classifier reads each, under two limits.

The 1 797 pictures of 8 x 8 pixels come with scikit-learn (E. Alpaydin and C. Kaynak,
Optical recognition of handwritten digits, 1998). A device keeps a thumbnail of 2 x 2
means and its own guess of the digit. It may trust the guess, or send the picture, small
or whole, to one of three classifiers. All are fitted to the first half of the pictures;
the second half is played. Only pixels that are not white are sent.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Category, Context, Space
from cbandit.errors import CBanditError
from cbandit.problems.contexts import Contexts

READERS = ("device", "small", "large", "nearest")
DIGITS, NEIGHBOURS = 10, 3


@cache
def pictures() -> tuple[Tensor, Tensor, Tensor]:
    """Return the device's guesses, which readers are right, and what each one costs.

    The shapes are ``(n, 10)``, probabilities of the digits; ``(n, 4)``, 1 where a
    reader is right, else 0; and ``(n, 2, 4)``, pixels sent and multiplications.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier
    except ImportError as error:
        raise CBanditError(
            "the pictures of this problem come with scikit-learn: "
            "pip install 'cbandit[experiments]'"
        ) from error
    pixels, digits = load_digits(return_X_y=True)
    whole = torch.as_tensor(pixels).double().view(-1, 8, 8) / 16
    thumb, small = (
        torch.nn.functional.avg_pool2d(whole, side).flatten(1) for side in (4, 2)
    )
    seen = (thumb, small, whole.flatten(1), whole.flatten(1))
    first = len(digits) // 2
    models = [LogisticRegression(max_iter=2000) for _ in READERS[:-1]]
    models.append(KNeighborsClassifier(NEIGHBOURS))
    right, sent = [], []
    for model, x in zip(models, seen, strict=True):
        model.fit(x[:first].numpy(), digits[:first])
        read = model.predict(x[first:].numpy()) == digits[first:]
        right.append(torch.as_tensor(read).double())
        sent.append((x[first:] > 0).sum(-1).double())
    guess = torch.as_tensor(models[0].predict_proba(thumb[first:].numpy()))
    sent[0] = torch.zeros_like(sent[0])
    each = torch.tensor([0, DIGITS, DIGITS, first]).double()  # products a pixel
    pixels_sent = torch.stack(sent, -1)
    costs = torch.stack([pixels_sent, pixels_sent * each], 1)
    return guess, torch.stack(right, -1), costs


def digits(sent: float = 20.0, operations: float = 1e4) -> Contexts:
    """Choose a classifier per picture, under limits on pixels and multiplications.

    The context is the probability of each digit, as the device sees it.

    Args:
        sent: limit on the mean number of pixels sent. Whole pictures have 33.
        operations: limit on the mean number of multiplications. The large linear
            classifier takes 326, the three nearest of 898 pictures take 29 000.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.digits(sent=15.0)                 # doctest: +SKIP
        >>> problem.fixed.reward                                    # doctest: +SKIP
    """
    limits = {
        "sent": float(checks.positive("sent", sent)),
        "operations": float(checks.positive("operations", operations)),
    }
    guess, right, costs = pictures()
    space = Space(reader=Category(*READERS), guess=Context(DIGITS))
    return Contexts(guess, right, costs, space, limits)

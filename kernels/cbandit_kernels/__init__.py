"""Kernels of the posterior's inner loop, each with a plain-torch reference."""

from cbandit_kernels.backends import (
    describe_native,
    native,
    streams_natively,
)
from cbandit_kernels.forms import (
    FAR,
    KINDS,
    kernel_columns,
    kernel_columns_ref,
    kernel_matrix_ref,
)
from cbandit_kernels.outcomes import (
    count_outcomes,
    count_outcomes_ref,
    with_spreads,
)
from cbandit_kernels.prices import window_price, window_price_ref
from cbandit_kernels.rounds import (
    finish_round,
    finish_round_ref,
    stored_round,
    stored_round_ref,
    stream_round,
    stream_round_ref,
)
from cbandit_kernels.types import (
    SCORES,
    Change,
    Factors,
    Found,
    Frame,
    Late,
    Look,
    OutcomeCounts,
    Priced,
    WeightRows,
    WeightSums,
)
from cbandit_kernels.weights import (
    enter_weights,
    enter_weights_ref,
    look_weights,
    look_weights_ref,
)
from cbandit_kernels.whole import (
    FUSED_RANK,
    joint_round,
    joint_round_ref,
    product_round,
    product_round_ref,
)

__all__ = [
    "FAR",
    "FUSED_RANK",
    "KINDS",
    "SCORES",
    "Change",
    "Factors",
    "Found",
    "Frame",
    "Late",
    "Look",
    "OutcomeCounts",
    "Priced",
    "WeightRows",
    "WeightSums",
    "count_outcomes",
    "count_outcomes_ref",
    "describe_native",
    "enter_weights",
    "enter_weights_ref",
    "finish_round",
    "finish_round_ref",
    "joint_round",
    "joint_round_ref",
    "kernel_columns",
    "kernel_columns_ref",
    "kernel_matrix_ref",
    "look_weights",
    "look_weights_ref",
    "native",
    "product_round",
    "product_round_ref",
    "stored_round",
    "stored_round_ref",
    "stream_round",
    "stream_round_ref",
    "streams_natively",
    "window_price",
    "window_price_ref",
    "with_spreads",
]

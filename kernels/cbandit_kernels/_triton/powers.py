"""Powers of 2 and roots for a kernel's inner loop.

In float32 each is one device instruction. In float64 the device's own functions branch
for each value, so that a thread cannot process its values together; these do not
branch.
"""

from __future__ import annotations

import triton
import triton.language as tl

# added to a number, this puts its nearest integer into the last bits
INTEGER = tl.constexpr(1.5 * 2.0**52)
# 2^f for |f| <= 1/2, from Chebyshev nodes: within 3e-16
SERIES = tl.constexpr(
    (
        7.072585949269223e-09,
        1.0208690299958306e-07,
        1.321544258792169e-06,
        1.5252657260200837e-05,
        0.0001540353044173605,
        0.0013333558230164974,
        0.009618129107606888,
        0.05550410866444772,
        0.24022650695910097,
        0.69314718055995,
        1.0,
    )
)


@triton.jit
def power(t):
    """``2^t``, ``t < 1000``; in float64 at least ``2^-1000``."""
    if t.dtype == tl.float32:
        return tl.exp2(t)
    else:
        return _power64(t)


@triton.jit
def distance(square):
    """Return the root of ``square``, which rounding may have put below 0."""
    if square.dtype == tl.float32:
        return tl.sqrt(tl.abs(square))
    else:
        return _distance64(square)


@triton.jit
def _power64(t):
    t = tl.where(t < -1000, -1000.0, t)
    whole = t + INTEGER
    part = t - (whole - INTEGER)
    value = part * SERIES[0] + SERIES[1]
    for i in tl.static_range(2, 11):
        value = value * part + SERIES[i]
    # the integer is added to the exponent
    bits = value.to(tl.int64, bitcast=True) + (whole.to(tl.int64, bitcast=True) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _distance64(square):
    square = tl.where(square < 1e-30, 1e-30, square)
    # from float32's 1 / root, whose error of 1e-7 is corrected to third order
    inverse = tl.maximum(tl.rsqrt(square.to(tl.float32)), 1e-19).to(tl.float64)
    root = square * inverse
    error = 1.0 - root * inverse
    return root + root * error * (error * 0.375 + 0.5)

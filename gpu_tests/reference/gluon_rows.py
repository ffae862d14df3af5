"""What the Gluon kernels of up to 16 query rows share: scores are [keys, rows], and the softmax of a block goes down
its columns.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gpu_tests.reference.gluon_parts import LAZY, ROOM, visible_in_draft

ROWS = gl.constexpr(16)
LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS.value, 16]))
OF_ROWS = gl.constexpr(gl.SliceLayout(0, LAYOUT.value))
OPERAND = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
WEIGHTS = gl.constexpr(gl.NVMMASharedLayout(32, 16, rank=2))


@gluon.jit
def mask_scores(
    scores, key, position, token, request, length, q_len, window_left, mask, mask_request, mask_row,
    WINDOW: gl.constexpr, MASK: gl.constexpr,
):  # fmt: skip
    """Scores [keys, rows] with -inf where a row does not see a key: behind its `position`, left of its window, or
    hidden by the draft mask.
    """
    visible = key[:, None] <= position[None, :]
    if WINDOW:
        visible &= key[:, None] >= position[None, :] - window_left
    if MASK:
        visible &= visible_in_draft(
            key[:, None], token[None, :], length, q_len, mask + request * mask_request, mask_row
        )
    return gl.where(visible, scores, float("-inf"))


@gluon.jit
def soften(scores, top, total):
    """The weights of a block [keys, rows], by how much all before it shrink [1, rows], and the new maximum of each row
    and sum of weights [keys, rows]. That is added up at the end: a sum over keys is one over threads.
    """
    peak = gl.max(scores, 0)
    new_top = gl.where(peak > top + LAZY, peak - ROOM, top)
    finite_top = gl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = gl.exp2(top - finite_top)[None, :]
    weights = gl.exp2(scores - finite_top[None, :])
    return weights, shrink, new_top, total * shrink + weights

"""How two captures of one function differ, in words.

Captured with different metadata, a correct function gives the same program: whatever differs (an op, a
shape, a host number) is a host value that leaked into the graph and will be stale at replay.  Addresses are
compared as roles ("the third buffer"), not as numbers, so that a fresh allocation is no difference.
"""

from __future__ import annotations

from typing import Any

from gpu_tests.graphs.emulation.memory import Block, Operand
from gpu_tests.graphs.emulation.recorder import Node, Program


def describe_differences(a: Program, b: Program) -> list[str]:
    """One sentence a difference; empty for equal programs.  Stops at the first op that differs."""
    differences: list[str] = []
    roles: tuple[dict[Block, int], dict[Block, int]] = ({}, {})
    for i, (x, y) in enumerate(zip(a.nodes, b.nodes, strict=False)):
        if x.op != y.op or x.spec != y.spec:
            return [
                *differences,
                f"node {i}: {x.op} ({x.site}) in the first, {y.op} ({y.site}) in the second",
            ]
        differences += [f"node {i} {x.op} ({x.site}): {words}" for words in _leaf_differences(x, y, roles)]
    if len(a.nodes) != len(b.nodes):
        longer, name = (a, "first") if len(a.nodes) > len(b.nodes) else (b, "second")
        extra = longer.nodes[min(len(a.nodes), len(b.nodes))]
        differences.append(
            f"{len(a.nodes)} nodes in the first, {len(b.nodes)} in the second; "
            f"the {name} goes on with {extra.op} ({extra.site})"
        )
    return differences


def _leaf_differences(x: Node, y: Node, roles: tuple[dict[Block, int], dict[Block, int]]) -> list[str]:
    found = []
    for known, node in zip(roles, (x, y), strict=True):
        for leaf in (*node.leaves, *node.outs):
            if isinstance(leaf, Operand):
                known.setdefault(leaf.block, len(known))
    for i, (u, v) in enumerate(zip(x.leaves, y.leaves, strict=True)):
        if isinstance(u, Operand) and isinstance(v, Operand):
            layouts = [(o.dtype, o.size, o.stride, o.offset) for o in (u, v)]
            if layouts[0] != layouts[1]:
                found.append(f"operand {i} is {_layout(u)} in the first, {_layout(v)} in the second")
            elif roles[0][u.block] != roles[1][v.block]:
                found.append(f"operand {i} is {u.block.label} in the first, {v.block.label} in the second")
        elif not _same(u, v):
            found.append(f"argument {i} is {_show(u)} in the first, {_show(v)} in the second")
    return found


def _same(u: Any, v: Any) -> bool:
    return type(u) is type(v) and (u == v or (u != u and v != v))


def _show(leaf: Any) -> str:
    return str(leaf) if isinstance(leaf, Operand) or hasattr(leaf, "value") else f"host {leaf!r}"


def _layout(o: Operand) -> str:
    return f"{o} with strides {list(o.stride)} at offset {o.offset}"

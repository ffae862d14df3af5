"""Faults of the compilers that can be seen in the SASS of a kernel, and that tests on a GPU see now and then at most.

Each function takes the text of `nvdisasm -c` and counts. They read it line by line, as it lies there: ptxas puts a
role behind another one, and what a role does in the order in which it does it, but for the loops that wait for a
barrier.
"""

from __future__ import annotations

import re

MATRIX = re.compile(r"\bHGMMA\.64x(\d+)x16\S* R(\d+), (?:R(\d+), )?gdesc")
INSTRUCTION = re.compile(r"(?:^|\s)(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*) (.*);")
REGISTER = re.compile(r"(?<![A-Z])R(\d+)")
ALLOTMENT = re.compile(r"\bUSETMAXREG\S* (?:UP\d+, )?(0x[0-9a-f]+)")
STORES = ("ST", "RED", "ATOM")


def stale_operands(sass: str) -> int:
    """HGMMA instructions in a loop whose first operand, in registers, is written in that loop behind them alone:
    from the second turn on they multiply something else.

    ptxas 12.8 did that to a query that was loaded once for all blocks of keys: it took the registers for the
    weights.
    """
    lines = sass.splitlines()
    labels = {line.strip().rstrip(":"): at for at, line in enumerate(lines) if re.match(r"\.L_x_\d+:", line.strip())}
    jumps = ((at, labels[name]) for at, line in enumerate(lines) for name in re.findall(r"BRA `\((\.L_x_\d+)\)", line))
    loops = [(start, at) for at, start in jumps if start < at]
    stale = 0
    for at, line in enumerate(lines):
        matrix = MATRIX.search(line)
        around = [(start, end) for start, end in loops if start < at < end]
        if not matrix or not matrix[3] or not around:
            continue
        # The innermost; what waits for a barrier jumps back, too, from far behind the loop.
        start, end = min(around, key=lambda loop: loop[1] - loop[0])
        operand = set(range(int(matrix[3]), int(matrix[3]) + 4))
        writes = [where for where in range(start, end) if operand & written(lines[where])]
        stale += bool(writes) and min(writes) > at
    return stale


def unfinished_loads(sass: str) -> int:
    """Arrivals at a barrier that may be seen before all warps of the role have what they loaded from shared memory:
    TMA may overwrite it on the way.

    Warps meet (`BAR.SYNC`) before one of them arrives (`SYNCS.ARRIVE`), but neither waits for loads. What waits is
    the first use of a load, or a memory barrier, which every `fence_async_shared` begins with. A role of one warp
    does not meet, and loads nothing.
    """
    found = 0
    loading: list[set[int]] = []  # registers of the loads that nothing has waited for
    met_while_loading = False
    for line in sass.splitlines():
        instruction = INSTRUCTION.search(line)
        if not instruction:
            continue
        name, operands = instruction[1], instruction[2]
        used = {int(number) for number in REGISTER.findall(operands)}
        if name.startswith(("MEMBAR", "USETMAXREG")):  # behind the latter another role begins
            loading, met_while_loading = [], False
        elif name.startswith("LDS"):
            address = {int(number) for number in REGISTER.findall(operands.partition("[")[2])}
            loading = [load for load in loading if not load & (address | written(line))]
            loading.append(written(line))
        elif name.startswith("BAR.SYNC"):
            met_while_loading = bool(loading)
        elif name.startswith("SYNCS.ARRIVE") and "A1T0" in name:  # the other kind expects bytes
            found += met_while_loading or bool(loading)
        else:
            loading = [load for load in loading if not load & (used | written(line))]
    return found


def registers_beyond(sass: str) -> int:
    """Instructions that write to a register beyond those that their role has (`setmaxnreg`)."""
    beyond, allotted = 0, 256
    for line in sass.splitlines():
        if allotment := ALLOTMENT.search(line):
            allotted = int(allotment[1], 16)
        beyond += max(written(line), default=0) >= allotted
    return beyond


def written(line: str) -> set[int]:
    """Numbers of the registers that an instruction writes."""
    if matrix := MATRIX.search(line):
        return set(range(int(matrix[2]), int(matrix[2]) + int(matrix[1]) // 2))
    instruction = INSTRUCTION.search(line)
    first = instruction and re.match(r"R(\d+),", instruction[2])
    if not instruction or not first or instruction[1].startswith(STORES):
        return set()
    name = instruction[1]
    four, two = (".128", ".M88.4"), (".64", ".WIDE", "CS2R")
    width = 4 if any(part in name for part in four) else 2 if any(part in name for part in two) else 1
    return set(range(int(first[1]), int(first[1]) + width))

"""Where the results of the operator sweep are stored and what its verdicts mean (without importing torch's
table).
"""

from __future__ import annotations

from pathlib import Path

STORED = Path(__file__).parent / "data" / "opinfo_cpu.json"

# verdict -> what it means, in the order of the report
VERDICTS = {
    "exact": "replay equals eager bit for bit",
    "close": "replay equals eager within 1e-3: torch takes another route to it while a mode is active",
    "uninitialised": "the result is uninitialised memory by nature; it is poison at replay",
    "refused": "capture is refused, as on CUDA",
    "not runnable": "the operator, or two equally shaped samples of it, do not exist on this CPU",
    "wrong": "replay differs from eager",
}

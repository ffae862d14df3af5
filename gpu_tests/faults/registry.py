"""All seeded faults.

`FAULTS` and `EQUIVALENTS` hold all of them, by id, in the order of the operators.
"""

from __future__ import annotations

from gpu_tests.faults import engine_faults, equivalents, kernel_faults, metadata_faults, seeds
from gpu_tests.faults.catalogue import EQUIVALENTS, OPERATORS, Fault
from gpu_tests.faults.catalogue import FAULTS as _FAULTS

_MODULES = (seeds, metadata_faults, kernel_faults, engine_faults, equivalents)
FAULTS: dict[str, Fault] = dict(sorted(_FAULTS.items(), key=lambda item: list(OPERATORS).index(item[1].operator)))

__all__ = ["EQUIVALENTS", "FAULTS", "OPERATORS", "Fault"]

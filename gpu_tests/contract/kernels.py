"""Which kernel stands behind the contract: the best one for each world, or one that is forced.

A forced kernel is never replaced by another.  Where it cannot run, `demand_fit` raises `NotApplicable` with the
kernel's own reason, and the world is reported as not applicable.  Gluon is written for the shapes of real models, so
worlds are judged with the heads of one when it is forced; everything else about them stays.

On a balanced grid the last bits of a request depend on the lengths beside it.  What the contract compares bit for bit
there is said in `checks._beside`.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from gpu_tests.backends import default_backend
from gpu_tests.backends.kernel_plug import ForcedKernel
from gpu_tests.backends.protocol import World, WorldSpec
from gpu_tests.backends.runner import Runner
from gpu_tests.contract.scenario import WORLDS
from gpu_tests.reference.decode import KernelPreconditionError
from gpu_tests.reference.grids import Grid

GLUON_WORLDS = {"mla": "mla-deepseek", "mha": "mha-llama"}
"""The world of each family whose dtype and heads others have when Gluon is forced."""

HEADS = (
    "num_q_heads", "num_kv_heads", "head_dim", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
)  # fmt: skip
WIDTHS = ("head_dim", "kv_lora_rank", "qk_rope_head_dim")
"""Fields of a world that say what its heads are, and those that a kernel is compiled for."""


class NotApplicable(Exception):
    """The forced kernel cannot run this world here; the message is its reason."""


@dataclass(frozen=True)
class KernelChoice:
    """`kernel` by name, or the best one for each launch (`auto`), and how it divides its work (`grid`)."""

    kernel: str = "auto"
    grid: str = "split"

    def __post_init__(self) -> None:
        problems = []
        for option, value, allowed in (("kernel", self.kernel, ForcedKernel), ("grid", self.grid, Grid)):
            names = typing.get_args(allowed)
            if value not in names:
                near = difflib.get_close_matches(value, names, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                problems.append(f"--{option} {value!r}: {hint}it is one of {', '.join(names)}")
        if problems:
            raise ValueError("\n".join(problems))

    def __str__(self) -> str:
        return f"kernel {self.kernel}, grid {self.grid}"

    @property
    def forced(self) -> bool:
        return self != BEST

    @property
    def options(self) -> list[str]:
        """What makes this choice on a command line."""
        given = [("kernel", self.kernel, "auto"), ("grid", self.grid, "split")]
        return [word for name, value, default in given if value != default for word in (f"--{name}", value)]

    def adapt(self, spec: WorldSpec) -> WorldSpec:
        """The world with this kernel behind it, at shapes that the kernel is written for."""
        chosen = replace(spec, kernel=self.kernel, grid=self.grid)  # type: ignore[arg-type]  # checked above
        if self.kernel != "gluon":
            return chosen
        model = WORLDS[GLUON_WORLDS[spec.family]]
        if all(getattr(spec, name) == getattr(model, name) for name in WIDTHS):
            return chosen
        heads = {name: getattr(model, name) for name in HEADS}
        return replace(chosen, dtype=model.dtype, max_context=max(spec.max_context, model.max_context), **heads)


BEST = KernelChoice()
"""No kernel is forced."""


def demand_fit(world: World, to_host: Callable[..., Tensor]) -> None:
    """Raise NotApplicable if the world's kernel cannot run it: our own backend's launches of every mode decide."""
    reason = _misplaced(world)
    if reason:
        raise NotApplicable(reason)
    backend = default_backend(world)
    runner = Runner(world, backend.fill_value(), to_host)
    for mode in world.spec.modes:
        batch = runner.dummy(mode, world.spec.max_bs)
        backend.eager_prepare(batch)
        try:
            backend.forward(0, runner.inputs(batch)[0], batch)
        except KernelPreconditionError as error:
            raise NotApplicable("; ".join(line.strip() for line in str(error).splitlines()[1:])) from error


def _misplaced(world: World) -> str:
    """Why the kernel has no place on this device, for what a launch itself would not refuse."""
    kernel, grid = world.spec.kernel, world.spec.grid
    on_gpu = world.device.type == "cuda"
    if kernel == "torch" and on_gpu:
        return "the PyTorch kernel reads its metadata on the host, which a CUDA graph cannot record"
    if grid == "balanced" and (kernel == "torch" or (kernel == "auto" and not on_gpu)):
        return "the PyTorch kernel, the one for CPUs, divides no work: it has no balanced grid"
    return ""

"""Small pieces of code whose fate under capture is known on a real GPU.

Each `Snippet` is one expression over the named tensors of `Inputs`.  `observe` captures it on one set of
inputs, loads another set into the same memory, replays, and says what the replay gave: the value that eager
code gives on the new inputs ("fresh"), on the old ones ("frozen"), on new device tensors with old host
tensors ("host frozen"), only NaN ("poison"), or something else.  Each `Probe` is a longer story that ends
in a word.  The words are compared between the emulation and CUDA.

`differs` explains why the emulation may disagree with CUDA; without it a disagreement is a bug of the
emulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree

from gpu_tests.graphs.driver import CaptureError, GraphDriver, ReplayError


class Inputs:
    """The tensors that snippets use; two seeds give different values and equal shapes.

    On the device: x, y float32 [4, 3] · v float32 [3] · spd float32 [3, 3] (positive definite) · m bool [4,
    3] · idx int64 [2] · lens int32 [4] · t0 int64 [] · s0 float32 [] · out float32 [4, 3] · buf float32 [3].
    On the host: h float32 [3] and hi int64 [2] pageable, h0 float32 [] pageable, p and q float32 [3] pinned.
    """

    def __init__(self, driver: GraphDriver, seed: int, host_seed: int | None = None) -> None:
        draw = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=draw)

        root = normal(3, 3)
        device = {
            "x": normal(4, 3),
            "y": normal(4, 3),
            "v": normal(3),
            "spd": root @ root.T + 3 * torch.eye(3),
            "m": normal(4, 3) > 0,
            "idx": torch.tensor([seed % 3, (seed + 1) % 3]),
            "lens": torch.tensor([1, 2, 3, 1 + seed % 3], dtype=torch.int32),
            "t0": torch.tensor(1 + seed % 2),
            "s0": normal(),
            "out": torch.zeros(4, 3),
            "buf": torch.zeros(3),
        }
        seed = seed if host_seed is None else host_seed
        draw.manual_seed(seed + 100)
        host = {"h": normal(3), "hi": torch.tensor([seed % 3, 0]), "h0": normal()}
        pinned = {"p": normal(3), "q": torch.zeros(3)}
        self.driver, self.device = driver, driver.device
        self.tensors = {
            **{name: t.to(driver.device) for name, t in device.items()},
            **{name: driver.to_host(t) for name, t in host.items()},
            **{name: driver.to_host(t, pinned=True) for name, t in pinned.items()},
        }

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise AttributeError(name) from None

    def load(self, other: Inputs) -> None:
        """Take over the values of `other`, in the memory of these tensors."""
        for name, t in self.tensors.items():
            t.copy_(other.tensors[name])


@dataclass(frozen=True)
class Observation:
    """What happened: `verdict` of the capture, `value` after replay (empty if refused), and the error's
    text.
    """

    verdict: Literal["captured", "refused"]
    value: str = ""
    error: str = ""

    @property
    def words(self) -> str:
        return f"{self.verdict}, {self.value}" if self.value else self.verdict


@dataclass(frozen=True)
class Snippet:
    name: str
    kind: str
    fn: Callable[[Inputs], Any]
    differs: str = ""

    def observe(self, driver: GraphDriver) -> Observation:
        inputs, new = Inputs(driver, 0), Inputs(driver, 1)
        before = {name: t.clone() for name, t in inputs.tensors.items()}
        try:
            self._eager(Inputs(driver, 0))  # libraries get their handles and workspaces outside the capture
            graph = driver.capture(lambda: self.fn(inputs), warmup=0)
        except CaptureError as error:
            return Observation("refused", error=_first_line(error))
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            return Observation("refused", error=_first_line(error))
        if any(not torch.equal(t, before[name]) for name, t in inputs.tensors.items()):
            return Observation("captured", "capture had an effect on its inputs")
        inputs.load(new)
        torch.manual_seed(7)
        try:
            graph.replay()
        except ReplayError as error:
            return Observation("captured", "error", _first_line(error))
        got = _values(graph.out)
        floating = [t for t in got if t.is_floating_point()]
        if floating and all(bool(t.isnan().all()) for t in floating):
            return Observation("captured", "poison")
        for word, seeds in {"fresh": (1, 1), "frozen": (0, 0), "host frozen": (1, 0)}.items():
            if _close(got, self._eager(Inputs(driver, *seeds))):
                return Observation("captured", word)
        return Observation("captured", "other")

    def _eager(self, inputs: Inputs) -> list[torch.Tensor]:
        torch.manual_seed(7)
        return _values(self.fn(inputs))


def _values(tree: Any) -> list[torch.Tensor]:
    _synchronize()
    return [leaf.detach().cpu().clone() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _close(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        s.shape == t.shape and torch.allclose(s, t.to(s.dtype), rtol=1e-4, atol=1e-5, equal_nan=True)
        for s, t in zip(a, b, strict=True)
    )


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _set(target: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    target[index] = value
    return target


def _also(result: torch.Tensor, *_: Any) -> torch.Tensor:
    """`result`, after the other arguments were evaluated."""
    return result


def _grad(e: Inputs) -> torch.Tensor | None:
    leaf = e.x.detach().requires_grad_()
    (leaf * e.y).sin().sum().backward()
    return leaf.grad


def _device_synchronize(e: Inputs) -> None:
    if e.x.is_cuda:
        torch.cuda.synchronize()


def _stream_synchronize(e: Inputs) -> None:
    if e.x.is_cuda:
        torch.cuda.current_stream().synchronize()


_NOT_MODELLED = "streams and their synchronisation are not modelled"
_EX_FORM = "refused with its family: whether the form without a check synchronises is up to the solver library"
_QUANTILE = "the CPU kernel of some torch versions reads q on the host, the CUDA one does not"

S = Snippet
SNIPPETS: tuple[Snippet, ...] = (
    # Reads on the host.
    S("item", "host read", lambda e: e.x * e.s0.item()),
    S("int()", "host read", lambda e: e.x * int(e.t0)),
    S("float()", "host read", lambda e: e.x * float(e.s0)),
    S("bool()", "host read", lambda e: e.x if e.s0 > 0 else e.y),
    S("any in if", "host read", lambda e: e.x if e.m.any() else e.y),
    S("index protocol", "host read", lambda e: e.x[: [0, 1, 2, 3].index(1) + e.t0.__index__()]),
    S("tolist", "host read", lambda e: e.x * e.lens.tolist()[0]),
    S("cpu", "host read", lambda e: e.x.cpu()),
    S("to('cpu')", "host read", lambda e: e.x.to("cpu")),
    S("to('cpu', dtype)", "host read", lambda e: e.x.to("cpu", torch.float64)),
    S("to('cpu', non_blocking)", "host read", lambda e: e.x.to("cpu", non_blocking=True)),
    S("numpy", "host read", lambda e: e.x.cpu().numpy()),
    S("numpy.asarray", "host read", lambda e: np.asarray(e.x.cpu())),
    S("repr", "host read", lambda e: _also(e.x, repr(e.x))),
    S("str", "host read", lambda e: _also(e.x, str(e.x))),
    S("format", "host read", lambda e: _also(e.x, f"{e.s0}")),
    S("format spec", "host read", lambda e: _also(e.x, f"{e.s0:.3f}")),
    S("in", "host read", lambda e: _also(e.x, 1.0 in e.x)),
    S("max of list of tensors", "host read", lambda e: max([e.s0, e.t0])),
    S("range(tensor)", "host read", lambda e: sum(e.x[i] for i in range(e.t0))),
    S("math on tensor", "host read", lambda e: e.x * np.sqrt(float(e.s0.abs()))),
    S("is_nonzero", "host read", lambda e: _also(e.x, torch.is_nonzero(e.t0))),
    S("equal", "host read", lambda e: _also(e.x, torch.equal(e.x, e.y))),
    S("equal to itself", "host read", lambda e: _also(e.x + 1, torch.equal(e.x, e.x))),
    S("equal of unequal shapes", "host read", lambda e: _also(e.x + 1, torch.equal(e.x, e.v))),
    S("allclose", "host read", lambda e: _also(e.x, torch.allclose(e.x, e.y))),
    S("item of a host tensor", "host read", lambda e: e.x * e.h0.item()),
    S("tolist of a host tensor", "host read", lambda e: e.x * e.h.tolist()[1]),
    S("host arithmetic then item", "host read", lambda e: e.x * (e.h.sum() * 2).item()),
    # Shapes that depend on data.
    S("nonzero", "shape", lambda e: e.x.nonzero()),
    S("where(c)", "shape", lambda e: torch.where(e.m)),
    S("argwhere", "shape", lambda e: torch.argwhere(e.m)),
    S("nonzero_static", "shape", lambda e: torch.nonzero_static(e.m, size=4)),
    S("x[mask]", "shape", lambda e: e.x[e.m]),
    S("masked_select", "shape", lambda e: e.x.masked_select(e.m)),
    S("unique", "shape", lambda e: torch.unique(e.lens)),
    S("unique_consecutive", "shape", lambda e: torch.unique_consecutive(e.lens)),
    S("unique(dim)", "shape", lambda e: torch.unique(e.x, dim=0)),
    S("bincount", "shape", lambda e: torch.bincount(e.lens)),
    S("bincount(minlength)", "shape", lambda e: torch.bincount(e.lens, minlength=8)),
    S("repeat_interleave(tensor)", "shape", lambda e: torch.repeat_interleave(e.x, e.lens, dim=0)),
    S("repeat_interleave(int)", "shape", lambda e: torch.repeat_interleave(e.x, 2, dim=0)),
    S(
        "repeat_interleave(output_size)",
        "shape",
        lambda e: torch.repeat_interleave(e.x, torch.ones_like(e.lens) * 2, dim=0, output_size=8),
    ),
    S("arange(tensor)", "shape", lambda e: torch.arange(e.t0, device=e.device)),
    S("zeros(tensor)", "shape", lambda e: torch.zeros(int(e.t0), device=e.device)),
    S("x[:tensor]", "shape", lambda e: e.x[: e.t0]),
    S("x[tensor 0-dim]", "shape", lambda e: e.x[e.t0]),
    S("x.split(tolist)", "shape", lambda e: e.x.split(e.idx.tolist())),
    S("x.narrow(tensor)", "shape", lambda e: e.x.narrow(0, e.t0, 1)),
    S("histc without a range", "shape", lambda e: torch.histc(e.x, 4)),
    S("histc with a range", "shape", lambda e: torch.histc(e.x, 4, -2, 2)),
    S("one_hot", "shape", lambda e: F.one_hot(e.idx)),
    S("linspace(device 0-dim)", "shape", lambda e: torch.linspace(e.s0, e.s0 + 1, 3, device=e.device)),
    S("one_hot(n)", "shape", lambda e: F.one_hot(e.idx, 4)),
    S("combinations", "shape", lambda e: torch.combinations(e.v)),
    S("isin", "shape", lambda e: torch.isin(e.lens, e.lens[:2])),
    S("isin of many", "shape", lambda e: torch.isin(e.lens, torch.arange(100, device=e.device))),
    S("isin(scalar)", "shape", lambda e: torch.isin(e.lens, 2)),
    # Indexing.
    S("x[int]", "index", lambda e: e.x[1] * 1),
    S("x[slice]", "index", lambda e: e.x[1:3] * 1),
    S("x[idx]", "index", lambda e: e.x[e.idx]),
    S("x[:, idx]", "index", lambda e: e.x[:, e.idx]),
    S("x[idx, idx]", "index", lambda e: e.x[e.idx, e.idx]),
    S("x[list]", "index", lambda e: e.x[[0, 2]]),
    S("x[list of bool]", "index", lambda e: e.x[[True, False, True, False]]),
    S("x[numpy]", "index", lambda e: e.x[np.array([0, 2])]),
    S("x[host idx]", "index", lambda e: e.x[e.hi]),
    S("x[None, ...]", "index", lambda e: e.x[None, ..., 0] * 1),
    S("x[range]", "index", lambda e: e.x[range(2)]),
    S("index_select", "index", lambda e: e.x.index_select(0, e.idx)),
    S("gather", "index", lambda e: e.x.gather(0, e.idx[:, None].expand(2, 3))),
    S("take", "index", lambda e: e.x.take(e.idx)),
    S("take_along_dim", "index", lambda e: torch.take_along_dim(e.x, e.idx[:, None].expand(2, 3), 0)),
    S("embedding", "index", lambda e: F.embedding(e.idx, e.x)),
    S("embedding(max_norm)", "index", lambda e: F.embedding(e.idx, e.x, max_norm=1.0)),
    S("embedding_bag", "index", lambda e: F.embedding_bag(e.idx, e.x, e.idx[:1] * 0)),
    S("x[0] = number", "index", lambda e: _set(e.x, 0, 5.0)),
    S("x[:] = number", "index", lambda e: _set(e.x, slice(None), 5.0)),
    S("x[0, 1] = number", "index", lambda e: _set(e.x, (0, 1), 5.0)),
    S("x[0, 0] = host 0-dim", "index", lambda e: _set(e.x, (0, 0), e.h0)),
    S("x[0] = host 0-dim", "index", lambda e: _set(e.x, 0, e.h0)),
    S("x[0, 0] = device 0-dim", "index", lambda e: _set(e.x, (0, 0), e.s0)),
    S("x[0] = tensor", "index", lambda e: _set(e.x, 0, e.v)),
    S("x[idx] = number", "index", lambda e: _set(e.x, e.idx, 1.5)),
    S("x[idx] = tensor", "index", lambda e: _set(e.x, e.idx, e.y[:2])),
    S("x[idx] = device 0-dim", "index", lambda e: _set(e.x, e.idx, e.s0)),
    S("x[mask] = number", "index", lambda e: _set(e.x, e.m, 5.0)),
    S("x[mask] = device 0-dim", "index", lambda e: _set(e.x, e.m, e.s0)),
    S("x[mask] = host 0-dim", "index", lambda e: _set(e.x, e.m, e.h0)),
    S("x[list] = tensor", "index", lambda e: _set(e.x, [0, 2], e.y[:2])),
    S("x[0] = list", "index", lambda e: _set(e.x, 0, torch.tensor([1.0, 2.0, 3.0]))),
    S("index_put_", "index", lambda e: e.x.index_put_((e.idx,), e.y[:2])),
    S("index_put_ accumulate", "index", lambda e: e.x.index_put_((e.idx,), e.y[:2], accumulate=True)),
    S("index_copy_", "index", lambda e: e.x.index_copy_(0, e.idx, e.y[:2])),
    S("index_add_", "index", lambda e: e.x.index_add_(0, e.idx, e.y[:2])),
    S("index_fill_", "index", lambda e: e.x.index_fill_(0, e.idx, 2.0)),
    S("index_fill_ device 0-dim", "index", lambda e: e.x.index_fill_(0, e.idx, e.s0)),
    S("index_reduce_", "index", lambda e: e.x.index_reduce_(0, e.idx, e.y[:2], "amax")),
    S("scatter_", "index", lambda e: e.x.scatter_(0, e.idx[:, None].expand(2, 3), e.y[:2])),
    S("scatter_ number", "index", lambda e: e.x.scatter_(0, e.idx[:, None].expand(2, 3), 2.0)),
    S("scatter_add_", "index", lambda e: e.x.scatter_add_(0, e.idx[:, None].expand(2, 3), e.y[:2])),
    S(
        "scatter_reduce",
        "index",
        lambda e: e.x.scatter_reduce(0, e.idx[:, None].expand(2, 3), e.y[:2], "amax"),
    ),
    S("put_", "index", lambda e: e.x.put_(e.idx, e.v[:2])),
    S("masked_fill_", "index", lambda e: e.x.masked_fill_(e.m, 3.0)),
    S("masked_fill_ host 0-dim", "index", lambda e: e.x.masked_fill_(e.m, e.h0)),
    S("masked_fill_ device 0-dim", "index", lambda e: e.x.masked_fill_(e.m, e.s0)),
    S("masked_scatter_", "index", lambda e: e.x.masked_scatter_(e.m, e.y)),
    S("where(c, x, y)", "index", lambda e: torch.where(e.m, e.x, e.y)),
    S("where(c, x, number)", "index", lambda e: torch.where(e.m, e.x, 0.0)),
    S("where(c, x, host 0-dim)", "index", lambda e: torch.where(e.m, e.x, e.h0)),
    S("where(c, x, device 0-dim)", "index", lambda e: torch.where(e.m, e.x, e.s0)),
    # Host memory and device memory.
    S("x * host 0-dim", "host copy", lambda e: e.x * e.h0),
    S("x.add_(host 0-dim)", "host copy", lambda e: e.x.add_(e.h0)),
    S("host 0-dim - x", "host copy", lambda e: e.h0 - e.x),
    S("x > host 0-dim", "host copy", lambda e: e.x > e.h0),
    S("clamp(host 0-dim)", "host copy", lambda e: torch.clamp(e.x, max=e.h0)),
    S("lerp(host 0-dim weight)", "host copy", lambda e: torch.lerp(e.x, e.y, e.h0)),
    S("addcmul host 0-dim", "host copy", lambda e: torch.addcmul(e.x, e.y, e.h0)),
    S("x.fill_(host 0-dim)", "host copy", lambda e: e.x.fill_(e.h0)),
    S("x.fill_(device 0-dim)", "host copy", lambda e: e.x.fill_(e.s0)),
    S("full(device 0-dim)", "host copy", lambda e: torch.full((3,), e.s0, device=e.device)),
    S("x * host 1-dim", "host copy", lambda e: e.x * e.h),
    S("x + arange without device", "host copy", lambda e: e.x[0] + torch.arange(3)),
    S("x @ host", "host copy", lambda e: e.x @ e.h),
    S("cat with host", "host copy", lambda e: torch.cat([e.v, e.h])),
    S(
        "torch.tensor(list, device)",
        "host copy",
        lambda e: e.v + torch.tensor([1.0, 2.0, 3.0], device=e.device),
    ),
    S("torch.tensor(number, device)", "host copy", lambda e: e.v + torch.tensor(2.0, device=e.device)),
    S("torch.tensor(number)", "host copy", lambda e: e.v + torch.tensor(2.0)),
    S(
        "torch.as_tensor(list, device)",
        "host copy",
        lambda e: e.v + torch.as_tensor([1.0, 2.0, 3.0], device=e.device),
    ),
    S(
        "torch.tensor([device 0-dim])",
        "host copy",
        lambda e: e.v + torch.tensor([e.t0, e.t0, e.t0], device=e.device),
    ),
    S("new_tensor", "host copy", lambda e: e.v + e.x.new_tensor([1.0, 2.0, 3.0])),
    S("new_zeros", "host copy", lambda e: e.v + e.x.new_zeros(3)),
    S("new_full", "host copy", lambda e: e.v + e.x.new_full((3,), 2.0)),
    S(
        "from_numpy.to(device)",
        "host copy",
        lambda e: torch.from_numpy(np.ones(3, np.float32)).to(e.device) + e.v,
    ),
    S("host.to(device)", "host copy", lambda e: e.h.to(e.device) + e.v),
    S("host.to(device, non_blocking)", "host copy", lambda e: e.h.to(e.device, non_blocking=True) + e.v),
    S("host 0-dim.to(device)", "host copy", lambda e: e.h0.to(e.device) + e.v),
    S("host.to(other tensor)", "host copy", lambda e: e.h.to(e.v) + e.v),
    S("pinned.to(device)", "host copy", lambda e: e.p.to(e.device) + e.v),
    S("pinned.to(device, non_blocking)", "host copy", lambda e: e.p.to(e.device, non_blocking=True) + e.v),
    S("copy_(host)", "host copy", lambda e: e.buf.copy_(e.h)),
    S("copy_(host, non_blocking)", "host copy", lambda e: e.buf.copy_(e.h, non_blocking=True)),
    S("copy_(pinned)", "host copy", lambda e: e.buf.copy_(e.p)),
    S("copy_(pinned, non_blocking)", "host copy", lambda e: e.buf.copy_(e.p, non_blocking=True)),
    S("host.copy_(device)", "host copy", lambda e: e.h.copy_(e.v)),
    S("host.copy_(device, non_blocking)", "host copy", lambda e: e.h.copy_(e.v, non_blocking=True)),
    S("pinned.copy_(device, non_blocking)", "host copy", lambda e: e.q.copy_(e.v, non_blocking=True)),
    S("pinned.copy_(device)", "host copy", lambda e: e.q.copy_(e.v)),
    S("to(device) of a device tensor", "host copy", lambda e: e.x.to(e.device) * 2),
    S("to(dtype)", "host copy", lambda e: e.x.to(torch.float16)),
    S("to(device, dtype)", "host copy", lambda e: e.x.to(e.device, torch.float64)),
    S("pin_memory inside, then copy", "host copy", lambda e: _copy_of_pinned_sum(e)),
    # Factories.
    S("zeros(device)", "factory", lambda e: e.v + torch.zeros(3, device=e.device)),
    S("ones_like", "factory", lambda e: e.v + torch.ones_like(e.v)),
    S("full(device)", "factory", lambda e: e.v + torch.full((3,), 2.0, device=e.device)),
    S("arange(device)", "factory", lambda e: e.v + torch.arange(3, device=e.device)),
    S("linspace(device)", "factory", lambda e: e.v + torch.linspace(0, 1, 3, device=e.device)),
    S("eye(device)", "factory", lambda e: e.spd + torch.eye(3, device=e.device)),
    S("tril_indices(device)", "factory", lambda e: torch.tril_indices(3, 3, device=e.device)),
    S("zeros without device, unused", "factory", lambda e: _also(e.v + 1, torch.zeros(3))),
    S("empty, read", "factory", lambda e: torch.empty(3, device=e.device) * 2),
    S("empty_like, filled", "factory", lambda e: torch.empty_like(e.v).copy_(e.v)),
    S("scalar_tensor(device)", "factory", lambda e: e.v + torch.scalar_tensor(2.0, device=e.device)),
    S("device context", "factory", lambda e: _in_device_context(e)),
    # Random numbers.
    S("rand", "random", lambda e: torch.rand(3, device=e.device)),
    S("randn_like", "random", lambda e: torch.randn_like(e.x)),
    S("randint", "random", lambda e: torch.randint(0, 9, (3,), device=e.device)),
    S("randperm", "random", lambda e: torch.randperm(8, device=e.device).sort().values),
    S("normal_", "random", lambda e: torch.empty_like(e.v).normal_()),
    S("uniform_", "random", lambda e: torch.empty_like(e.v).uniform_()),
    S("bernoulli", "random", lambda e: torch.bernoulli(e.x.sigmoid())),
    S("exponential_", "random", lambda e: torch.empty_like(e.v).exponential_()),
    S("dropout", "random", lambda e: F.dropout(e.x, 0.5)),
    S("multinomial", "random", lambda e: torch.multinomial(e.x.softmax(-1), 1)),
    S("multinomial several", "random", lambda e: torch.multinomial(e.x.softmax(-1), 2)),
    S("multinomial replacement", "random", lambda e: torch.multinomial(e.x.softmax(-1), 4, replacement=True)),
    S(
        "foreign generator",
        "random",
        lambda e: torch.rand(3, device=e.device, generator=torch.Generator(e.device)),
    ),
    # Plain arithmetic and reductions.
    S("x * number", "arithmetic", lambda e: e.x * 2.5),
    S("number ** x", "arithmetic", lambda e: 2.0**e.x),
    S("add_", "arithmetic", lambda e: e.x.add_(e.y)),
    S("out=", "arithmetic", lambda e: torch.add(e.x, e.y, out=e.out)),
    S("copy_", "arithmetic", lambda e: e.out.copy_(e.x)),
    S("view then write", "arithmetic", lambda e: _also(e.x, e.x.view(-1)[2:5].mul_(3.0))),
    S("transpose then write", "arithmetic", lambda e: _also(e.x, e.x.t().add_(1.0))),
    S("expand", "arithmetic", lambda e: e.v.expand(4, 3) + e.x),
    S("cat", "arithmetic", lambda e: torch.cat([e.x, e.y])),
    S("stack", "arithmetic", lambda e: torch.stack([e.x, e.y])),
    S("chunk", "arithmetic", lambda e: torch.cat(e.x.chunk(2)[::-1])),
    S("roll", "arithmetic", lambda e: e.x.roll(1, 0)),
    S("flip", "arithmetic", lambda e: e.x.flip(0)),
    S("sum", "arithmetic", lambda e: e.x.sum()),
    S("mean(dim)", "arithmetic", lambda e: e.x.mean(1)),
    S("var", "arithmetic", lambda e: e.x.var(0)),
    S("max(dim)", "arithmetic", lambda e: e.x.max(1)),
    S("argmax", "arithmetic", lambda e: e.x.argmax(1)),
    S("cumsum", "arithmetic", lambda e: e.x.cumsum(0)),
    S("cumsum of lengths", "arithmetic", lambda e: F.pad(e.lens.cumsum(0, dtype=torch.int32), (1, 0))),
    S("softmax", "arithmetic", lambda e: e.x.softmax(-1)),
    S("layer_norm", "arithmetic", lambda e: F.layer_norm(e.x, (3,))),
    S("logsumexp", "arithmetic", lambda e: e.x.logsumexp(-1)),
    S("foreach_add", "arithmetic", lambda e: torch._foreach_add([e.x, e.v], 1.0)),
    S("sort", "arithmetic", lambda e: e.x.sort(0)),
    S("topk", "arithmetic", lambda e: e.x.topk(2)),
    S("median", "arithmetic", lambda e: e.x.median()),
    S("median(dim)", "arithmetic", lambda e: e.x.median(0)),
    S("mode", "arithmetic", lambda e: e.x.mode(0).values),
    S("kthvalue", "arithmetic", lambda e: e.x.kthvalue(2)),
    S("quantile", "arithmetic", lambda e: e.x.quantile(0.5), _QUANTILE),
    S("searchsorted", "arithmetic", lambda e: torch.searchsorted(e.v.sort().values, e.x)),
    S("bucketize", "arithmetic", lambda e: torch.bucketize(e.x, e.v.sort().values)),
    S("digitize lengths", "arithmetic", lambda e: torch.arange(3, device=e.device)[None] < e.lens[:, None]),
    # Matrices.
    S("mm", "matrix", lambda e: e.x @ e.spd),
    S("addmm", "matrix", lambda e: torch.addmm(e.y, e.x, e.spd)),
    S("bmm", "matrix", lambda e: torch.bmm(e.x[None], e.spd[None])),
    S("einsum", "matrix", lambda e: torch.einsum("ij,jk->ik", e.x, e.spd)),
    S("linear", "matrix", lambda e: F.linear(e.x, e.spd, e.v)),
    S("conv1d", "matrix", lambda e: F.conv1d(e.x[None], e.y[:2, :, None].transpose(1, 0).repeat(1, 2, 1))),
    S(
        "sdpa",
        "matrix",
        lambda e: F.scaled_dot_product_attention(e.x[None, None], e.y[None, None], e.x[None, None]),
    ),
    S("fft", "matrix", lambda e: torch.fft.fft(e.x).real.contiguous()),
    S("qr", "matrix", lambda e: torch.linalg.qr(e.spd)[1].abs()),
    S("det", "matrix", lambda e: torch.det(e.spd)),
    S("slogdet", "matrix", lambda e: torch.linalg.slogdet(e.spd)),
    S("cholesky", "matrix", lambda e: torch.linalg.cholesky(e.spd)),
    S("solve", "matrix", lambda e: torch.linalg.solve(e.spd, e.v)),
    S("inv", "matrix", lambda e: torch.linalg.inv(e.spd)),
    S("pinv", "matrix", lambda e: torch.linalg.pinv(e.spd)),
    S("svd", "matrix", lambda e: torch.linalg.svd(e.spd)[1]),
    S("svdvals", "matrix", lambda e: torch.linalg.svdvals(e.spd)),
    S("eigh", "matrix", lambda e: torch.linalg.eigh(e.spd)[0]),
    S("eig", "matrix", lambda e: torch.linalg.eig(e.spd)[0].real.sort().values),
    S("lstsq", "matrix", lambda e: torch.linalg.lstsq(e.spd, e.v[:, None]).solution),
    S("cholesky_ex", "matrix", lambda e: torch.linalg.cholesky_ex(e.spd)[0], _EX_FORM),
    S("inv_ex", "matrix", lambda e: torch.linalg.inv_ex(e.spd)[0], _EX_FORM),
    S("solve_ex", "matrix", lambda e: torch.linalg.solve_ex(e.spd, e.v)[0], _EX_FORM),
    S("matrix_exp", "matrix", lambda e: torch.matrix_exp(e.spd)),
    S("matrix_power", "matrix", lambda e: torch.linalg.matrix_power(e.spd, 3)),
    S("matrix_norm 2", "matrix", lambda e: torch.linalg.matrix_norm(e.spd, 2)),
    S("cdist", "matrix", lambda e: torch.cdist(e.x, e.y)),
    # Losses and gradients.
    S("cross_entropy", "training", lambda e: F.cross_entropy(e.x[:2], e.idx)),
    S("nll_loss", "training", lambda e: F.nll_loss(e.x[:2].log_softmax(-1), e.idx)),
    S("ctc_loss", "training", lambda e: _ctc(e)),
    S("batch_norm", "training", lambda e: F.batch_norm(e.x, e.buf, e.v.abs(), training=True)),
    S("backward", "training", _grad),
    # Around the stream.
    S("torch.cuda.synchronize", "stream", lambda e: _also(e.x + 1, _device_synchronize(e)), _NOT_MODELLED),
    S("stream.synchronize", "stream", lambda e: _also(e.x + 1, _stream_synchronize(e)), _NOT_MODELLED),
    S("resize_", "stream", lambda e: torch.empty(0, device=e.device).resize_(3).copy_(e.v)),
    S("detach", "stream", lambda e: e.x.detach() * 2),
    S("shape as a number", "stream", lambda e: e.x * e.x.shape[0]),
    S("data_ptr", "stream", lambda e: _also(e.x * 1, e.x.data_ptr())),
    S("device of a tensor", "stream", lambda e: torch.zeros(3, device=e.v.device) + e.v),
    S("inference_mode", "stream", lambda e: _inference(e)),
    S("contiguous", "stream", lambda e: e.x.t().contiguous()),
    S("reshape that copies", "stream", lambda e: e.x.t().reshape(-1)),
    S("view as another dtype", "stream", lambda e: e.v.view(torch.int32) + 0),
    # Indices out of range at replay: an error for the emulation, a device-side assert on the GPU.
    S("x[idx] out of range", "fault", lambda e: e.x[e.idx + 4 * (e.t0 - 1)]),
    S("index_select out of range", "fault", lambda e: e.x.index_select(0, e.idx + 4 * (e.t0 - 1))),
    S("gather out of range", "fault", lambda e: e.x.gather(0, (e.idx + 4 * (e.t0 - 1))[:, None])),
)


def _in_device_context(e: Inputs) -> torch.Tensor:
    with torch.device(e.device):
        return e.v + torch.zeros(3)


def _inference(e: Inputs) -> torch.Tensor:
    with torch.inference_mode():
        return F.linear(e.x, e.spd).reshape(-1) * 2


def _copy_of_pinned_sum(e: Inputs) -> list[torch.Tensor]:
    pinned = e.driver.to_host(e.h.cumsum(0), pinned=True)
    return [e.buf.copy_(pinned, non_blocking=True), pinned]


def _ctc(e: Inputs) -> torch.Tensor:
    log_probs = e.x[:, None, :].log_softmax(-1)
    lengths = torch.full((1,), 4, device=e.device), torch.full((1,), 1, device=e.device)
    return F.ctc_loss(log_probs, torch.ones(1, 1, dtype=torch.long, device=e.device), *lengths)


@dataclass(frozen=True)
class Probe:
    """A story of several steps; `run` returns the word for what was seen, `expected` is the right one."""

    name: str
    expected: str
    run: Callable[[GraphDriver], str]
    kind: str = "probe"
    differs: str = ""

    def observe(self, driver: GraphDriver) -> Observation:
        try:
            return Observation("captured", self.run(driver))
        except CaptureError as error:
            return Observation("refused", error=_first_line(error))
        except ReplayError as error:
            return Observation("captured", "error", _first_line(error))


def _word(t: torch.Tensor) -> str:
    """The first element, as text that is equal on both devices."""
    return f"{float(t.detach().cpu().reshape(-1)[0]):g}"


def _ones(driver: GraphDriver) -> torch.Tensor:
    return torch.ones(1024, device=driver.device)


def _output_before_replay(driver: GraphDriver) -> str:
    x = _ones(driver)
    return _word(driver.capture(lambda: x + 1).out)


def _capture_leaves_memory(driver: GraphDriver) -> str:
    x = _ones(driver)
    driver.capture(lambda: x.add_(1), warmup=0)
    return _word(x)


def _warmup_runs(driver: GraphDriver) -> str:
    x = _ones(driver)
    driver.capture(lambda: x.add_(1), warmup=2)
    return _word(x)


def _replays_accumulate(driver: GraphDriver) -> str:
    x = _ones(driver)
    graph = driver.capture(lambda: x.add_(1), warmup=0)
    graph.replay()
    graph.replay()
    return _word(x)


def _capture_keeps_rng(driver: GraphDriver) -> str:
    torch.manual_seed(3)
    expected = _word(torch.rand(4, device=driver.device))
    torch.manual_seed(3)
    driver.capture(lambda: torch.rand(4, device=driver.device), warmup=0)
    return "same" if _word(torch.rand(4, device=driver.device)) == expected else "advanced"


def _rng_advances(driver: GraphDriver) -> str:
    graph = driver.capture(lambda: torch.rand(4, device=driver.device), warmup=0)
    torch.manual_seed(3)
    graph.replay()
    first = _word(graph.out)
    graph.replay()
    return "advances" if _word(graph.out) != first else "repeats"


def _rng_is_the_eager_stream(driver: GraphDriver) -> str:
    graph = driver.capture(lambda: torch.rand(4, device=driver.device), warmup=0)
    torch.manual_seed(3)
    graph.replay()
    graph.replay()
    torch.manual_seed(3)
    torch.rand(4, device=driver.device)
    return "same" if _word(torch.rand(4, device=driver.device)) == _word(graph.out) else "other"


def _rebinding_is_not_seen(driver: GraphDriver) -> str:
    box = {"x": _ones(driver)}
    old = box["x"]
    graph = driver.capture(lambda: box["x"] * 2)
    box["x"] = old + 6
    graph.replay()
    return _word(graph.out)


def _python_number_is_frozen(driver: GraphDriver) -> str:
    box, x = {"n": 2.0}, _ones(driver)
    graph = driver.capture(lambda: x * box["n"])
    box["n"] = 5.0
    graph.replay()
    return _word(graph.out)


def _python_branch_is_frozen(driver: GraphDriver) -> str:
    box, x = {"flag": True}, _ones(driver)
    graph = driver.capture(lambda: x * 2 if box["flag"] else x * 3)
    box["flag"] = False
    graph.replay()
    return _word(graph.out)


def _two_graphs_share_a_buffer(driver: GraphDriver) -> str:
    x = _ones(driver)
    first, second = driver.capture(lambda: x.mul_(2), warmup=0), driver.capture(lambda: x.add_(1), warmup=0)
    first.replay()
    second.replay()
    first.replay()
    return _word(x)


def _lazy_constant_of_another_graph(driver: GraphDriver) -> str:
    """A constant made inside the first capture, used by a second graph that is replayed first."""
    box: dict[str, torch.Tensor] = {}
    x, pool = _ones(driver), driver.new_pool()

    def step() -> torch.Tensor:
        if "c" not in box:
            box["c"] = torch.full((1024,), 3.0, device=driver.device)
        return x * box["c"]

    first = driver.capture(step, pool, warmup=0)
    second = driver.capture(step, pool, warmup=0)
    second.replay()
    early = _word(second.out)
    first.replay()
    second.replay()
    return f"{early} then {_word(second.out)}"


def _later_graph_spares_live_output(driver: GraphDriver) -> str:
    x, pool = _ones(driver), driver.new_pool()
    first = driver.capture(lambda: (x + 1) * 2, pool)
    second = driver.capture(lambda: (x + 5) * 3, pool)
    first.replay()
    second.replay()
    return _word(first.out)


def _earlier_graph_clobbers(driver: GraphDriver) -> str:
    """The first graph's temporary is dead when the second is captured; then the first is replayed."""
    x, pool = _ones(driver), driver.new_pool()
    first = driver.capture(lambda: (x + 1) * 2, pool)
    second = driver.capture(lambda: x + 4, pool)
    second.replay()
    before = _word(second.out)
    first.replay()
    return f"{before} then {'kept' if _word(second.out) == before else 'lost'}"


def _workspace_is_dirty(driver: GraphDriver) -> str:
    x = _ones(driver)
    graph = driver.capture(lambda: torch.empty_like(x)[:512].add_(x[:512]))
    graph.replay()
    return _word(graph.out)


def _freed_buffer(driver: GraphDriver) -> str:
    """Freed after capture and re-used by a new tensor of the same size."""
    box = {"x": _ones(driver)}
    graph = driver.capture(lambda: box["x"] * 2)
    box.clear()
    other = torch.full((1024,), 11.0, device=driver.device)
    try:
        graph.replay()
    except ReplayError:
        return "not the old value"
    del other  # it held the address until here
    return "the old value" if _word(graph.out) == "2" else "not the old value"


def _chain_of_graphs(driver: GraphDriver) -> str:
    x = _ones(driver)
    first = driver.capture(lambda: x + 1)
    second = driver.capture(lambda: first.out * 10)
    x.fill_(4)
    first.replay()
    second.replay()
    return _word(second.out)


def _refused_capture_is_harmless(driver: GraphDriver) -> str:
    x = _ones(driver)
    try:
        driver.capture(lambda: x * x.sum().item(), warmup=0)
    except CaptureError:
        graph = driver.capture(lambda: x + 2)
        graph.replay()
        return _word(graph.out)
    return "not refused"


def _pinned_input_is_live(driver: GraphDriver) -> str:
    host = driver.to_host(torch.ones(4), pinned=True)
    x = torch.zeros(4, device=driver.device)
    graph = driver.capture(lambda: x.copy_(host, non_blocking=True))
    host.fill_(9)
    graph.replay()
    return _word(x)


PROBES: tuple[Probe, ...] = (
    Probe("output before the first replay", "nan", _output_before_replay),
    Probe("capture leaves memory alone", "1", _capture_leaves_memory),
    Probe("warm-up runs for real", "3", _warmup_runs),
    Probe("replays accumulate", "3", _replays_accumulate),
    Probe("capture keeps the random state", "same", _capture_keeps_rng),
    Probe("random state advances per replay", "advances", _rng_advances),
    Probe("random stream is the eager one", "same", _rng_is_the_eager_stream),
    Probe("rebinding is not seen", "2", _rebinding_is_not_seen),
    Probe("Python number is frozen", "2", _python_number_is_frozen),
    Probe("Python branch is frozen", "2", _python_branch_is_frozen),
    Probe("two graphs share a buffer", "6", _two_graphs_share_a_buffer),
    Probe("lazy constant of another graph", "nan then 3", _lazy_constant_of_another_graph),
    Probe("later graph spares a live output", "4", _later_graph_spares_live_output),
    Probe("earlier graph may clobber a later one", "5 then lost", _earlier_graph_clobbers),
    Probe("workspace is dirty on entry", "nan", _workspace_is_dirty),
    Probe("freed buffer", "not the old value", _freed_buffer),
    Probe("one graph feeds another", "50", _chain_of_graphs),
    Probe("refused capture is harmless", "3", _refused_capture_is_harmless),
    Probe("pinned input is live", "9", _pinned_input_is_live),
)

TABLE: tuple[Snippet | Probe, ...] = (*SNIPPETS, *PROBES)

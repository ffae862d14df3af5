"""The protocol of an attention backend under capture and replay, and the values that it is given.

A backend is made by a factory `build(world) -> Backend`.  The contract then drives it as an engine does:

    capture:  capture_prepare(batch); graph = capture(in_graph(batch); forward(0, ...); forward(1, ...); ...)
    replay:   replay_prepare(batch);  graph.replay()
    eager:    eager_prepare(batch);   in_graph(batch); forward(0, ...); forward(1, ...); ...

Batches carry SGLang's field names.  What each number means in each mode (R rows, N = num_draft_tokens):

    mode            tokens   seq_lens counts                            query i of a row sees the keys
    DECODE          R        the new token as well                      0 .. seq_lens - 1
    DRAFT_DECODE    R a step the tokens before step 0                   step s: 0 .. seq_lens + s
    TARGET_VERIFY   R * N    the tokens before the draft                0 .. seq_lens + i (a tree: its mask)
    DRAFT_EXTEND    R * N    with `seq_lens="full"` the new tokens too  0 .. end - N + i   (uniform rows)
                    packed: sum(accept_length + 1) in front             0 .. end - (accept_length + 1) + i

Padded rows stand behind the live ones.  Their outputs are thrown away, their tokens go to slot 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gpu_tests.backends.kernel_plug import ForcedKernel, KernelPlug
from gpu_tests.reference.grids import Grid
from gpu_tests.reference.paged import PagedKV


class Mode(StrEnum):
    """What a forward pass is for.  One backend may serve several modes."""

    DECODE = "decode"
    DRAFT_DECODE = "draft_decode"
    TARGET_VERIFY = "target_verify"
    DRAFT_EXTEND = "draft_extend"


@dataclass(frozen=True)
class RunnerSpec:
    """How the engine's model runner feeds a backend: the other half of every capture/replay agreement.

    rows: draft-extend tokens at the uniform stride N, or packed by accept_length + 1.
    seq_lens: whether draft-extend lengths count the new tokens (`full`) or not (`prefix`).
    host_lists: whether `seq_lens_cpu` and `accept_length_cpu` come along.
    index_dtype: dtype of `seq_lens`, `req_pool_indices` and `accept_length`.
    stale_pool_indices: padded rows keep the request indices of an earlier batch.
    """

    rows: Literal["uniform", "packed"] = "uniform"
    seq_lens: Literal["full", "prefix"] = "full"
    host_lists: Literal["given", "none"] = "given"
    index_dtype: Literal["int32", "int64"] = "int64"
    stale_pool_indices: bool = True


@dataclass(frozen=True)
class WorldSpec:
    """Everything about a world that can be written down: shapes, sizes, modes, the runner and the kernel."""

    family: Literal["mla", "mha"]
    modes: tuple[Mode, ...]
    runner: RunnerSpec = field(default_factory=RunnerSpec)
    capture_sizes: tuple[int, ...] = (1, 2, 4)
    num_draft_tokens: int = 4
    num_steps: int = 3
    max_context: int = 96
    page_size: int = 16
    num_q_heads: int = 4
    num_kv_heads: int = 2  # MHA
    head_dim: int = 16  # MHA
    kv_lora_rank: int = 32  # MLA
    qk_nope_head_dim: int = 16  # MLA
    qk_rope_head_dim: int = 16  # MLA
    v_head_dim: int = 16  # MLA
    window_left: int = -1
    sinks: bool = False
    tree: bool = False
    scaled_kv: bool = False
    kv_storage: Literal["separate", "page", "token"] = "separate"
    kv_layout: Literal["NHD", "HND"] = "NHD"
    dtype: Literal["float32", "bfloat16"] = "float32"
    kv_dtype: Literal["as dtype", "float8_e4m3fn"] = "as dtype"
    empty_rows: Literal["strict", "safe"] = "strict"
    kernel: ForcedKernel = "auto"
    grid: Grid = "split"

    @property
    def max_bs(self) -> int:
        return max(self.capture_sizes)

    @property
    def max_pages(self) -> int:
        """Columns of a page table: pages of the longest request."""
        return -(-self.max_context // self.page_size)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    @property
    def torch_kv_dtype(self) -> torch.dtype:
        return self.torch_dtype if self.kv_dtype == "as dtype" else torch.float8_e4m3fn

    def steps(self, mode: Mode) -> int:
        return self.num_steps if mode is Mode.DRAFT_DECODE else 1

    def tokens_per_row(self, mode: Mode) -> int:
        return self.num_draft_tokens if mode in (Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND) else 1


@dataclass
class Layer:
    """The attention layer of the model.  Its tensors are updated in place when weights are reloaded.

    scaling: float.  k_scale, v_scale: fp32 [1] device tensors (1.0 without a quantised cache).
    sinks: fp32 [Hq] or None.  MLA: w_kc [H, nope, latent] and w_vc [H, latent, v].
    """

    scaling: float
    k_scale: Tensor
    v_scale: Tensor
    window_left: int = -1
    sinks: Tensor | None = None
    w_kc: Tensor | None = None
    w_vc: Tensor | None = None


@dataclass
class World:
    """The engine round a backend: static tensors that it may keep, the layer and the kernels to call.

    req_to_token: int32 [max requests + 1, max_context], slot of each token; row 0 is all zeros.
    kv: the paged pool; page 0 takes the tokens of padded rows.
    shared_workspace: uint8, scratch that other backends of the engine use as well.
    """

    spec: WorldSpec
    device: torch.device
    req_to_token: Tensor
    kv: PagedKV
    layer: Layer
    kernels: KernelPlug
    shared_workspace: Tensor


@dataclass
class SpecInfo:
    """Speculative decoding's part of a batch.

    accept_length: [R], accepted draft tokens a row (draft extend).  custom_mask: bool [R, N, N], which draft
    token sees which (tree verify).
    """

    draft_token_num: int
    accept_length: Tensor | None = None
    accept_length_cpu: list[int] | None = None
    custom_mask: Tensor | None = None


@dataclass
class Batch:
    """One forward pass as SGLang's ForwardBatch says it.  In graph mode all tensors are views of static buffers.

    out_cache_loc: int64 [steps, tokens].  positions: int64 [tokens] of step 0.
    """

    forward_mode: Mode
    batch_size: int
    num_tokens: int
    req_pool_indices: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None
    positions: Tensor
    out_cache_loc: Tensor
    spec_info: SpecInfo | None = None


@dataclass
class Inputs:
    """What the layer gives attention for one step.

    MHA: q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D].
    MLA: q [T, H, nope + rope], k [T, 1, latent + rope] (the new cache entry), v None.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None


class Backend(Protocol):
    """An attention backend.  Keep what capture made by reference: the graph does."""

    def capture_prepare(self, batch: Batch) -> None:
        """Make the metadata of (batch.forward_mode, batch.batch_size); outside the graph."""

    def in_graph(self, batch: Batch) -> None:
        """Metadata work that is recorded in the graph; may be empty."""

    def replay_prepare(self, batch: Batch) -> None:
        """Refresh the metadata of a captured size; outside the graph, without waiting for the device."""

    def eager_prepare(self, batch: Batch) -> None:
        """Make metadata for a forward pass without a graph."""

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        """Write the new tokens to the cache and attend: [T, Hq, D] (MLA: [T, H, v_head_dim])."""

    def weights_updated(self) -> None:
        """The layer's tensors hold new values (after a weight update)."""

    def fill_value(self) -> int:
        """What `seq_lens` of a padded row holds."""

    def metadata_objects(self) -> Sequence[object | Mapping[str, Any]]:
        """The metadata in use now, one object a step: dataclasses, namespaces or mappings of named fields."""


BackendFactory = Callable[[World], Backend]


class ProtocolError(Exception):
    """A backend is not what this file asks for; the message says which call gave what."""


def build(factory: BackendFactory, world: World) -> Backend:
    """A backend from its factory.  Raises ProtocolError if calls of the protocol are missing."""
    backend = factory(world)
    calls = [name for name in vars(Backend) if not name.startswith("_")]
    missing = [name for name in calls if not callable(getattr(backend, name, None))]
    if missing:
        raise ProtocolError(f"the factory returned {type(backend).__name__!r}, which lacks {', '.join(missing)}")
    fill = backend.fill_value()
    if not isinstance(fill, int):
        raise ProtocolError(f"fill_value() returned {fill!r}, must be an int")
    return backend


class NotSupported(Exception):
    """A factory raises it for a world that the backend does not serve; the reason is reported."""

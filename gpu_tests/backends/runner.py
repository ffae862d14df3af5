"""The model runner's double: static buffers, padding and fill rules, as SGLang's graph runners have them.

The bugs that the contract looks for are disagreements between runner and backend, so the runner is declared as data
(`RunnerSpec`) and does one thing: it turns a `Feed`, the live rows of one forward pass, into

* `dummy(mode, bs)`: what a capture is given, all rows at the fill rule;
* `padded(feed, bs)`: views of the static buffers of captured size `bs`;
* `plain(feed)`: fresh tensors of exactly the live rows, for a pass without a graph.

The fill rule of padded rows: seq_lens = `fill_value()`, out_cache_loc = positions = 0, accept_length so that the row
counts N tokens or more, draft mask causal; `req_pool_indices` keep old values or are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.protocol import Batch, Inputs, Mode, SpecInfo, World


@dataclass(frozen=True)
class Feed:
    """The live rows of one forward pass, on the host.

    out_cache_loc [steps][tokens] and positions [tokens] in the order of the tokens; inputs: one `Inputs` a step with
    exactly these tokens.  counts [tokens]: whether the output is used, which it is not for rejected draft tokens.
    accept_length [R] for draft extend; custom_mask bool [R, N, N] for a tree.
    """

    mode: Mode
    req_pool_indices: list[int]
    seq_lens: list[int]
    out_cache_loc: list[list[int]]
    positions: list[int]
    inputs: list[Inputs]
    counts: list[bool]
    accept_length: list[int] | None = None
    custom_mask: Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.seq_lens)


@dataclass
class _Buffers:
    """The static tensors of one mode at the largest captured size; a captured size uses prefixes of them."""

    req_pool_indices: Tensor
    seq_lens: Tensor
    accept_length: Tensor
    out_cache_loc: Tensor
    positions: Tensor
    live: Tensor
    custom_mask: Tensor | None
    seq_lens_cpu: Tensor
    inputs: list[Inputs]


class Runner:
    """Static buffers for each mode of a world.

    `to_host(tensor, pinned)` makes host memory of a tensor (`GraphDriver.to_host`).  `seq_lens_cpu` of graph batches is
    one pinned buffer that the next batch overwrites.
    """

    def __init__(self, world: World, fill_value: int, to_host: Callable[..., Tensor]) -> None:
        self.world, self.fill_value, self._to_host = world, fill_value, to_host
        self._index_dtype = getattr(torch, world.spec.runner.index_dtype)
        self._buffers = {mode: self._allocate(mode) for mode in world.spec.modes}

    def dummy(self, mode: Mode, bs: int) -> Batch:
        self._pad(mode, 0, 0)
        buffers = self._buffers[mode]
        buffers.req_pool_indices.zero_()
        for inputs in buffers.inputs:
            for t in _tensors(inputs):
                t.copy_(_noise(t))
        buffers.live.fill_(True)
        return self._batch(buffers, mode, bs, [self.fill_value] * bs, [self._pad_accept] * bs)

    def padded(self, feed: Feed, bs: int, pad_input: float = 0.0) -> Batch:
        """Load `feed` and give the views of captured size `bs`; inputs of padded tokens hold `pad_input`."""
        tokens, mode = len(feed.positions), feed.mode
        buffers = self._buffers[mode]
        self._pad(mode, feed.rows, tokens)
        self._load(buffers, feed)
        for inputs in buffers.inputs:
            for t in _tensors(inputs):
                t[tokens:].fill_(pad_input)
        padding = bs - feed.rows
        accept = None if feed.accept_length is None else feed.accept_length + [self._pad_accept] * padding
        return self._batch(buffers, mode, bs, feed.seq_lens + [self.fill_value] * padding, accept)

    def plain(self, feed: Feed) -> tuple[Batch, list[Inputs]]:
        """The batch of the live rows alone, and its inputs."""
        buffers = self._allocate(feed.mode)
        self._load(buffers, feed)
        tokens = len(feed.positions)
        batch = self._batch(buffers, feed.mode, feed.rows, feed.seq_lens, feed.accept_length, tokens)
        return batch, [_first(x, tokens) for x in buffers.inputs]

    def inputs(self, batch: Batch) -> list[Inputs]:
        """The static inputs of a batch from `dummy` or `padded`, one a step."""
        return [_first(x, batch.num_tokens) for x in self._buffers[batch.forward_mode].inputs]

    def live_tokens(self, batch: Batch) -> Tensor:
        """Bool [tokens]: whose output counts; all of them in a dummy."""
        return self._buffers[batch.forward_mode].live[: batch.num_tokens]

    @property
    def _pad_accept(self) -> int:
        """Uniform rows: N, as SGLang fills it.  Packed: a padded row stands for N tokens, the room that it has."""
        n = self.world.spec.num_draft_tokens
        return n if self.world.spec.runner.rows == "uniform" else n - 1

    def _allocate(self, mode: Mode) -> _Buffers:
        spec, device = self.world.spec, self.world.device
        tokens, n = spec.max_bs * spec.tokens_per_row(mode), spec.num_draft_tokens
        index: dict[str, Any] = {"dtype": self._index_dtype, "device": device}
        return _Buffers(
            req_pool_indices=torch.zeros(spec.max_bs, **index),
            seq_lens=torch.full((spec.max_bs,), self.fill_value, **index),
            accept_length=torch.full((spec.max_bs,), self._pad_accept, **index),
            out_cache_loc=torch.zeros(spec.steps(mode), tokens, dtype=torch.int64, device=device),
            positions=torch.zeros(tokens, dtype=torch.int64, device=device),
            live=torch.ones(tokens, dtype=torch.bool, device=device),
            custom_mask=_causal(spec.max_bs, n, device) if spec.tree and mode is Mode.TARGET_VERIFY else None,
            seq_lens_cpu=self._to_host(torch.zeros(spec.max_bs, dtype=self._index_dtype), pinned=True),
            inputs=[self._empty_inputs(tokens) for _ in range(spec.steps(mode))],
        )

    def _empty_inputs(self, tokens: int) -> Inputs:
        spec = self.world.spec
        options: dict[str, Any] = {"dtype": spec.torch_dtype, "device": self.world.device}
        if spec.family == "mla":
            q = torch.zeros(tokens, spec.num_q_heads, spec.qk_nope_head_dim + spec.qk_rope_head_dim, **options)
            return Inputs(q, torch.zeros(tokens, 1, spec.kv_lora_rank + spec.qk_rope_head_dim, **options), None)
        q = torch.zeros(tokens, spec.num_q_heads, spec.head_dim, **options)
        k, v = (torch.zeros(tokens, spec.num_kv_heads, spec.head_dim, **options) for _ in range(2))
        return Inputs(q, k, v)

    def _pad(self, mode: Mode, rows: int, tokens: int) -> None:
        """The fill rule, from row `rows` and token `tokens` on."""
        buffers = self._buffers[mode]
        buffers.seq_lens[rows:] = self.fill_value
        buffers.accept_length[rows:] = self._pad_accept
        buffers.out_cache_loc[:, tokens:] = 0
        buffers.positions[tokens:] = 0
        buffers.live[tokens:] = False
        if buffers.custom_mask is not None:
            buffers.custom_mask[rows:] = _causal(1, self.world.spec.num_draft_tokens, self.world.device)
        if not self.world.spec.runner.stale_pool_indices:
            buffers.req_pool_indices[rows:] = 0

    def _load(self, buffers: _Buffers, feed: Feed) -> None:
        rows, tokens = feed.rows, len(feed.positions)
        _put(buffers.req_pool_indices[:rows], feed.req_pool_indices)
        _put(buffers.seq_lens[:rows], feed.seq_lens)
        _put(buffers.out_cache_loc[:, :tokens], feed.out_cache_loc)
        _put(buffers.positions[:tokens], feed.positions)
        _put(buffers.live[:tokens], feed.counts)
        if feed.accept_length is not None:
            _put(buffers.accept_length[:rows], feed.accept_length)
        if buffers.custom_mask is not None and feed.custom_mask is not None:
            buffers.custom_mask[:rows].copy_(feed.custom_mask)
        for static, live in zip(buffers.inputs, feed.inputs, strict=True):
            for to, source in zip(_tensors(static), _tensors(live), strict=True):
                to[:tokens].copy_(source)

    def _batch(
        self,
        buffers: _Buffers,
        mode: Mode,
        bs: int,
        seq_lens: list[int],
        accept: list[int] | None,
        num_tokens: int | None = None,
    ) -> Batch:
        spec = self.world.spec
        given = spec.runner.host_lists == "given"
        tokens = bs * spec.tokens_per_row(mode) if num_tokens is None else num_tokens
        buffers.seq_lens_cpu[:bs] = torch.tensor(seq_lens, dtype=self._index_dtype)
        info = None
        if mode is not Mode.DECODE:
            extend = mode is Mode.DRAFT_EXTEND
            info = SpecInfo(
                draft_token_num=spec.num_draft_tokens,
                accept_length=buffers.accept_length[:bs] if extend else None,
                accept_length_cpu=list(accept) if extend and given and accept is not None else None,
                custom_mask=None if buffers.custom_mask is None else buffers.custom_mask[:bs],
            )
        return Batch(
            forward_mode=mode,
            batch_size=bs,
            num_tokens=tokens,
            req_pool_indices=buffers.req_pool_indices[:bs],
            seq_lens=buffers.seq_lens[:bs],
            seq_lens_cpu=buffers.seq_lens_cpu[:bs] if given else None,
            positions=buffers.positions[:tokens],
            out_cache_loc=buffers.out_cache_loc[:, :tokens],
            spec_info=info,
        )


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [t for t in (inputs.q, inputs.k, inputs.v) if t is not None]


def _first(inputs: Inputs, tokens: int) -> Inputs:
    return Inputs(inputs.q[:tokens], inputs.k[:tokens], None if inputs.v is None else inputs.v[:tokens])


def _put(to: Tensor, values: list[int] | list[bool] | list[list[int]]) -> None:
    to.copy_(torch.tensor(values, dtype=to.dtype).reshape(to.shape))


def _causal(rows: int, n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(rows, n, n).clone()


def _noise(like: Tensor) -> Tensor:
    """Dummy inputs: finite, different for every token, the same in every run."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(like.numel())).to(like)

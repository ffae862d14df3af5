"""Doubles of the objects that an SGLang-style backend reads from its engine: runner, pools, layer.

They grow with the engine: `Lax` answers None for a name that it does not know and remembers it in `missing`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.protocol import World


class Lax:
    """A double of an engine's object: unset names are None, and are listed in `missing` once they are read."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known, missing=set())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.missing.add(name)
        return None


class KvPool:
    """SGLang's token_to_kv_pool over the world's pages."""

    def __init__(self, world: World) -> None:
        self._kv, self.page_size = world.kv, world.spec.page_size

    def set_kv_buffer(self, layer: Any, loc: Tensor, k: Tensor, v: Tensor, *scales: Any) -> None:
        self._kv.write(loc, k, v)

    def set_mla_kv_buffer(self, layer: Any, loc: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
        self._kv.write(loc, torch.cat([k_nope, k_rope], dim=-1))

    def get_kv_buffer(self, layer_id: int) -> Any:
        """As the kernels want it: `PagedKV.kv_cache()`."""
        return self._kv.kv_cache()

    get_key_buffer = get_kv_buffer


def model_runner(world: World) -> Lax:
    """What a backend's `__init__` reads of SGLang's ModelRunner."""
    spec, layer = world.spec, world.layer
    server_args = Lax(speculative_num_draft_tokens=spec.num_draft_tokens, speculative_num_steps=spec.num_steps)
    return Lax(
        device=world.device,
        dtype=spec.torch_dtype,
        page_size=spec.page_size,
        model_config=Lax(context_len=spec.max_context, num_attention_heads=spec.num_q_heads),
        server_args=server_args,
        req_to_token_pool=SimpleNamespace(req_to_token=world.req_to_token, size=len(world.req_to_token)),
        token_to_kv_pool=KvPool(world),
        kernels=world.kernels,
        layer=Lax(
            layer_id=0,
            scaling=layer.scaling,
            k_scale=layer.k_scale,
            v_scale=layer.v_scale,
            sliding_window_size=layer.window_left,
            tp_q_head_num=spec.num_q_heads,
            tp_k_head_num=spec.num_kv_heads,
            head_dim=spec.head_dim,
            sinks=layer.sinks,
        ),
    )

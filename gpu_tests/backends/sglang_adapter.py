"""Run SGLang-style attention backends under the contract, of both generations of their graph interface.

    legacy (to June 2026)   init_forward_metadata_capture_cuda_graph / ..._replay_cuda_graph, outside the graph
    new                     init_forward_metadata_out_graph outside the graph, ..._in_graph recorded in it

`sglang_backend(make, ForwardMode)` is a factory for `--backend`.  `make(model_runner, step)` constructs the engine's
backend for one step of a chain (`speculative_step_id = step`).  `model_runner` is a double of SGLang's; its `missing`
lists the names that the engine read and the double does not set: look at it once for a new version of the engine.
Point the engine's kernel calls at `model_runner.kernels` (sglang imports them from `flashinfer.decode`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpu_tests.backends.engine_doubles import Lax, model_runner
from gpu_tests.backends.mla import per_token
from gpu_tests.backends.protocol import BackendFactory, Batch, Inputs, Mode, World


class SglangAdapter:
    """The contract's protocol over SGLang's.  `engines`: one backend a step; `forward_mode`: the engine's enum."""

    def __init__(self, world: World, runner: Lax, engines: list[Any], forward_mode: Any) -> None:
        self._world, self._runner, self._engines, self._modes = world, runner, engines, forward_mode
        self._current = engines[:1]
        tokens = max(world.spec.tokens_per_row(mode) for mode in world.spec.modes)
        for engine in engines:
            engine.init_cuda_graph_state(world.spec.max_bs, world.spec.max_bs * tokens)

    def capture_prepare(self, batch: Batch) -> None:
        for engine, forward in self._forwards(batch):
            if _is_new(engine):
                engine.init_forward_metadata_out_graph(forward, in_capture=True)
            else:
                engine.init_forward_metadata_capture_cuda_graph(
                    batch.batch_size, batch.num_tokens, batch.req_pool_indices, batch.seq_lens, None,
                    forward.forward_mode, forward.spec_info,
                )  # fmt: skip

    def in_graph(self, batch: Batch) -> None:
        for engine, forward in self._forwards(batch):
            if _is_new(engine):
                engine.init_forward_metadata_in_graph(forward)

    def replay_prepare(self, batch: Batch) -> None:
        for engine, forward in self._forwards(batch):
            if _is_new(engine):
                engine.init_forward_metadata_out_graph(forward)
            else:
                engine.init_forward_metadata_replay_cuda_graph(
                    batch.batch_size, batch.req_pool_indices, batch.seq_lens, forward.seq_lens_sum, None,
                    forward.forward_mode, forward.spec_info, batch.seq_lens_cpu,
                )  # fmt: skip

    def eager_prepare(self, batch: Batch) -> None:
        for engine, forward in self._forwards(batch):
            engine.init_forward_metadata(forward)

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        engine, forward = self._forwards(batch)[step]
        spec, layer, runner = self._world.spec, self._world.layer, self._runner
        if spec.family == "mha":
            out = engine.forward(inputs.q, inputs.k, inputs.v, runner.layer, forward, save_kv_cache=True)
            return Tensor.view(out, inputs.q.shape)
        # The model absorbs and expands, not the backend.
        q_nope, q_rope = inputs.q.split([spec.qk_nope_head_dim, spec.qk_rope_head_dim], dim=-1)
        k_nope, k_rope = inputs.k.split([spec.kv_lora_rank, spec.qk_rope_head_dim], dim=-1)
        assert layer.w_kc is not None
        assert layer.w_vc is not None
        absorbed = per_token(q_nope, layer.w_kc)
        rope = {"q_rope": q_rope, "k_rope": k_rope}
        out = engine.forward(absorbed, k_nope, k_nope, runner.layer, forward, save_kv_cache=True, **rope)
        return per_token(out.view(absorbed.shape), layer.w_vc)

    def weights_updated(self) -> None:
        """The model holds the absorbed weights, and updates them in place."""

    def fill_value(self) -> int:
        return int(self._engines[0].get_cuda_graph_seq_len_fill_value())

    def metadata_objects(self) -> list[Any]:
        return [engine.forward_metadata for engine in self._current]

    def _forwards(self, batch: Batch) -> list[tuple[Any, Lax]]:
        """Each step's engine and its ForwardBatch.  Draft decode is DECODE with spec_info, as in SGLang."""
        names = {Mode.DRAFT_DECODE: "DECODE", Mode.DRAFT_EXTEND: "DRAFT_EXTEND_V2"}
        mode = self._modes[names.get(batch.forward_mode, batch.forward_mode.name)]
        steps = self._world.spec.steps(batch.forward_mode)
        self._current = self._engines[:steps]
        total = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())
        info = None if batch.spec_info is None else Lax(**vars(batch.spec_info), topk=1)
        common = {**vars(batch), "forward_mode": mode, "spec_info": info, "seq_lens_sum": total}
        pools = {name: getattr(self._runner, name) for name in ("req_to_token_pool", "token_to_kv_pool")}
        return [
            (engine, Lax(**{**common, "out_cache_loc": batch.out_cache_loc[step]}, **pools))
            for step, engine in enumerate(self._current)
        ]


def _is_new(engine: Any) -> bool:
    return hasattr(engine, "init_forward_metadata_out_graph")


def sglang_backend(make: Callable[[Lax, int], Any], forward_mode: Any) -> BackendFactory:
    """A factory of adapted backends.  `forward_mode` is the engine's enum of modes (`ForwardMode`)."""

    def factory(world: World) -> SglangAdapter:
        runner = model_runner(world)
        steps = max(world.spec.steps(mode) for mode in world.spec.modes)
        return SglangAdapter(world, runner, [make(runner, step) for step in range(steps)], forward_mode)

    return factory

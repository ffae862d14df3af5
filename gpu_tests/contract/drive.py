"""Drive a backend through a scenario as an engine does, and keep the evidence.

    all sizes are captured first, largest first, on a fresh backend
    each round:  load the truth, pad the batch, replay_prepare, replay
                 the same batch through a second instance without a graph (the eager control)
                 the same batch through a third instance's capture_prepare (the witness)

Order matters: sizes share buffers, so after any replay the next capture would find them filled, and sglang#26521
disappears.  Nothing is judged here; `checks` reads the `Evidence`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpu_tests.backends.kernel_plug import KernelCall
from gpu_tests.backends.protocol import Backend, BackendFactory, Batch, Inputs, Mode, NotSupported, ProtocolError, build
from gpu_tests.backends.runner import Feed, Runner
from gpu_tests.contract.cache import copy_of, differences
from gpu_tests.contract.evidence import Evidence, Execution, Failure, ReplayRecord, SideBySide
from gpu_tests.contract.guards import Guards
from gpu_tests.contract.kernels import KernelChoice, NotApplicable, demand_fit
from gpu_tests.contract.metadata import BatchFacts, Snapshot, snapshot
from gpu_tests.contract.scenario import Round, Scenario
from gpu_tests.contract.truth import Expected, RowTruth, Truth, chain, make_world
from gpu_tests.graphs import Captured, CaptureError, GraphDriver
from gpu_tests.reference.paged import PagedKV

WARMUPS = 2
"""Eager runs before a capture, as in SGLang's runners; the output of the last one is looked at."""


@dataclass
class _Graph:
    """A captured size: its graph, what its kernels log, and the metadata and batch that it was captured with."""

    graph: Captured
    calls: list[KernelCall]
    metadata: Snapshot
    facts: BatchFacts
    unwritten: frozenset[str]


def run(scenario: Scenario, factory: BackendFactory, driver: GraphDriver) -> Evidence:
    """Run the whole scenario.  A backend that raises ends it; the evidence says where.

    Raises NotSupported for a world that the backend does not serve, NotApplicable for one that its kernel cannot run.
    """
    evidence = Evidence(scenario)
    with _uninitialised_memory_is_poison():
        try:
            session = _Session(scenario, factory, driver, evidence)
        except (NotSupported, NotApplicable):
            raise
        except Exception as error:
            evidence.failures.append(Failure("capture", "the factory, before any capture", error))
            return evidence
        if session.capture_all():
            for index, round_ in enumerate(scenario.rounds()):
                if not session.play(index, round_):
                    break
        session.finish()
    _shorten_collections()
    return evidence


class _Session:
    def __init__(self, scenario: Scenario, factory: BackendFactory, driver: GraphDriver, evidence: Evidence) -> None:
        self.scenario, self.driver, self.evidence, self.spec = scenario, driver, evidence, scenario.spec
        self.choice = KernelChoice(self.spec.kernel, self.spec.grid)
        if self.choice.forced:
            demand_fit(make_world(self.spec, driver.device), driver.to_host)
        with Guards() as self.guards:
            self.world = make_world(self.spec, driver.device)
            self.backend, self.eager, self.witness = (build(factory, self.world) for _ in range(3))
        self.truth = Truth(self.world, scenario.perturbations)
        self.runner = Runner(self.world, self.backend.fill_value(), driver.to_host)
        self.pool = driver.new_pool()
        self.graphs: dict[tuple[Mode, int], _Graph] = {}
        self._prepared: tuple[_Graph, Batch] | None = None
        self.nan_flags = {
            mode: torch.zeros(self.spec.steps(mode), dtype=torch.bool, device=driver.device) for mode in self.spec.modes
        }
        self.diffed: set[Mode] = set()

    # -- capture -----------------------------------------------------------------------------------------------

    def capture_all(self) -> bool:
        if self.scenario.has("no_warmup"):
            self._load_libraries()
        sizes = [(mode, bs) for mode in self.spec.modes for bs in sorted(self.spec.capture_sizes, reverse=True)]
        for mode, bs in sizes:
            label = f"capture of {mode} at {bs} rows"
            try:
                self._capture(mode, bs, label)
            except NotApplicable:
                raise
            except Exception as error:  # whatever a backend raises is what is wrong with it
                refused = isinstance(error, CaptureError)
                self.evidence.failures.append(Failure("host_sync" if refused else "capture", label, error))
                return False
        gc.collect()  # everything freed that may be freed: a graph holds no references
        return True

    def _load_libraries(self) -> None:
        """Compile and load kernels through another instance: a process can do that once, and not while capturing."""
        for mode in self.spec.modes:
            batch = self.runner.dummy(mode, self.spec.max_bs)
            self.eager.eager_prepare(batch)
            self._model(self.eager, batch)
            self._take_nan_steps(mode)

    def _capture(self, mode: Mode, bs: int, label: str) -> None:
        round_ = self.scenario.capture_round(mode, bs)
        if round_ is None:
            self.truth.load(Round(mode, bs, ()))
            batch, feed = self.runner.dummy(mode, bs), None
            rows = self.truth.dummy_rows(mode, bs, self.runner.fill_value)
        else:
            feed, rows = self.truth.load(round_)
            batch = self.runner.padded(feed, bs)
        before = self.guards.versions()
        with self.guards:
            self.backend.capture_prepare(batch)
        if not self.scenario.has("no_warmup"):
            self.evidence.captures.append(self._warm_up(batch, rows, feed, label))
        with self.world.kernels.logging() as calls:
            graph = self.driver.capture(lambda: self._model(self.backend, batch), self.pool, warmup=0)
        if self.choice.forced and not calls:
            raise NotApplicable("the backend launches no kernel of world.kernels, so none can be forced")
        metadata = snapshot(self.backend.metadata_objects())
        unwritten = frozenset(
            name
            for name, f in metadata.items()
            if f.tensor is not None and before.get(f.tensor.untyped_storage().data_ptr()) == f.version
        )
        self.graphs[mode, bs] = _Graph(graph, calls, metadata, self._facts(batch), unwritten)

    def _warm_up(self, batch: Batch, rows: list[RowTruth], feed: Feed | None, label: str) -> Execution:
        for _ in range(WARMUPS - 1):
            self._model(self.backend, batch)
        caches: list[PagedKV] = []
        with self.world.kernels.logging() as calls:
            outs = self._model(self.backend, batch, after_step=lambda: caches.append(copy_of(self.world.kv)))
        expected = [
            self.truth.expected(rows, step, inputs, cache)
            for step, (inputs, cache) in enumerate(zip(self._inputs_seen(batch, outs), caches, strict=True))
        ]
        return self._execution("capture", label, batch, rows, outs, expected, calls, self.backend)

    # -- one round ---------------------------------------------------------------------------------------------

    def play(self, index: int, round_: Round) -> bool:
        label = f"round {index}: {round_.mode}, {len(round_.rows)} live rows on the graph of {round_.bs}"
        check = "replay"
        try:
            record = self._replay(round_, label)
            if round_.rows:
                check = "eager"
                record.eager = self._eager_control(round_, f"eager control of {label}")
                check = "capture"
                record.witness = self._witness(round_, record)
            self.evidence.replays.append(record)
        except Exception as error:
            metadata = self._at_failure(label) if check == "replay" else None
            self.evidence.failures.append(Failure(check, label, error, metadata))
            return False
        return True

    def _at_failure(self, label: str) -> SideBySide | None:
        """Capture against the replay that raised; None when it had no metadata yet, or the device is lost."""
        if self._prepared is None:
            return None
        graph, batch = self._prepared
        try:
            replayed, facts = snapshot(self.backend.metadata_objects()), self._facts(batch)
        except Exception:
            return None  # what raised first is the news
        return SideBySide(label, graph.metadata, graph.facts, graph.unwritten, replayed, facts)

    def _replay(self, round_: Round, label: str) -> ReplayRecord:
        feed, rows = self.truth.load(round_)
        graph = self.graphs[round_.mode, round_.bs]
        batch = self._padded(feed, round_.bs)
        before = copy_of(self.world.kv)
        self._prepared = None
        self.backend.weights_updated()
        if self.scenario.has("host_reuse") and self.world.device.type == "cuda":
            torch.cuda._sleep(20_000_000)  # the device is late: what replay_prepare enqueues runs after the overwrite
        with self.driver.sync_guard() as syncs:
            self.backend.replay_prepare(batch)
        self._prepared = (graph, batch)
        if self.scenario.has("host_reuse"):
            _overwrite_host_tensors(batch)
        if self.scenario.has("dirty_workspace"):
            self.world.shared_workspace.fill_(0xFF)
        graph.graph.replay()
        outs = [o.clone() for o in graph.graph.out]
        expected, kv_problems = self._judge_cache(feed, rows, self._inputs_seen(batch, outs), before)
        execution = self._execution("replay", label, batch, rows, outs, expected, graph.calls, self.backend)
        return ReplayRecord(execution, None, graph.metadata, graph.facts, graph.unwritten, None, kv_problems, syncs, [])

    def _eager_control(self, round_: Round, label: str) -> Execution:
        feed, rows = self.truth.load(round_)
        batch, inputs = self.runner.plain(feed)
        before = copy_of(self.world.kv)
        self.eager.weights_updated()
        with self.guards:
            self.eager.eager_prepare(batch)
        with self.world.kernels.logging() as calls:
            outs = self._model(self.eager, batch, inputs)
        expected, _ = self._judge_cache(feed, rows, self._inputs_seen(batch, outs, inputs), before)
        return self._execution("eager", label, batch, rows, outs, expected, calls, self.eager)

    def _witness(self, round_: Round, record: ReplayRecord) -> Snapshot:
        """The metadata that capture_prepare makes of this round's batch; once a mode, the program as well."""
        feed, _ = self.truth.load(round_)
        batch = self._padded(feed, round_.bs)
        self.witness.weights_updated()
        with self.guards:
            self.witness.capture_prepare(batch)
        self.witness.in_graph(batch)
        seen = snapshot(self.witness.metadata_objects())
        if round_.mode not in self.diffed:
            self.diffed.add(round_.mode)
            if not self.scenario.has("no_warmup"):
                self._model(self.witness, batch)
                self._take_nan_steps(round_.mode)
            with self.world.kernels.logging():
                second = self.driver.capture(lambda: self._model(self.witness, batch), warmup=0)
            first = self.graphs[round_.mode, round_.bs].graph
            record.program_differences = list(self.driver.diff(first, second))
        return seen

    def _judge_cache(
        self, feed: Feed, rows: list[RowTruth], inputs: Sequence[Inputs], before: PagedKV
    ) -> tuple[list[list[Expected]], list[str]]:
        """Expected outputs of every step, and how the cache differs from what the pass had to write."""
        expected = []
        for step, of_step in enumerate(inputs):
            self.truth.write(feed, step, of_step, before)
            expected.append(self.truth.expected(rows, step, of_step, before))
        return expected, differences(self.world.kv, before)

    # -- the model ---------------------------------------------------------------------------------------------

    def _model(
        self,
        backend: Backend,
        batch: Batch,
        inputs: list[Inputs] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> list[Tensor]:
        """The forward pass that is captured: in-graph metadata, then the steps, each fed by the one before.

        Every step raises a device flag if an output that counts is NaN, in warm-up runs and replays alike, as SGLang's
        NaN detection does.
        """
        static = self.runner.inputs(batch) if inputs is None else inputs
        live = self.runner.live_tokens(batch) if inputs is None else None
        backend.in_graph(batch)
        outs: list[Tensor] = []
        for step, given in enumerate(static):
            out = backend.forward(step, chain(given, outs[-1], self.spec) if outs else given, batch)
            self._demand_output(out, batch)
            outs.append(out.clone())
            if after_step is not None:
                after_step()
            nan = torch.isnan(outs[-1]).flatten(1).any(dim=1)
            self.nan_flags[batch.forward_mode][step].logical_or_((nan if live is None else nan & live).any())
        return outs

    def _demand_output(self, out: object, batch: Batch) -> None:
        spec = self.spec
        dim = spec.v_head_dim if spec.family == "mla" else spec.head_dim
        want = f"{spec.torch_dtype} {[batch.num_tokens, spec.num_q_heads, dim]}"
        got = f"{out.dtype} {list(out.shape)}" if isinstance(out, Tensor) else repr(out)
        if got != want:
            raise ProtocolError(f"forward returned {got}, must be {want}")

    def _inputs_seen(self, batch: Batch, outs: list[Tensor], inputs: list[Inputs] | None = None) -> list[Inputs]:
        """The inputs of each step, given what the steps returned."""
        static = self.runner.inputs(batch) if inputs is None else inputs
        return [chain(x, outs[i - 1], self.spec) if i else x for i, x in enumerate(static)]

    def _padded(self, feed: Feed, bs: int) -> Batch:
        return self.runner.padded(feed, bs, torch.nan if self.scenario.has("pad_nan") else 0.0)

    def _execution(
        self,
        kind: Literal["capture", "replay", "eager"],
        label: str,
        batch: Batch,
        rows: list[RowTruth],
        outs: list[Tensor],
        expected: list[list[Expected]],
        calls: list[KernelCall],
        backend: Backend,
    ) -> Execution:
        return Execution(
            kind=kind,
            label=label,
            mode=batch.forward_mode,
            bs=batch.batch_size,
            rows=rows,
            facts=self._facts(batch),
            outs=[o.cpu() for o in outs],
            expected=expected,
            metadata=snapshot(backend.metadata_objects()),
            # A copy on every device: the next replay of the graph writes these tensors again.
            calls=[{name: t.to("cpu", copy=True) for name, t in call.tensors.items()} for call in calls],
            num_tokens=batch.num_tokens,
            nan_steps=self._take_nan_steps(batch.forward_mode),
        )

    def _take_nan_steps(self, mode: Mode) -> list[int]:
        """The steps whose flag was raised since the last look."""
        flags = self.nan_flags[mode]
        steps: list[int] = flags.nonzero().flatten().tolist()
        flags.zero_()
        return steps

    def _facts(self, batch: Batch) -> BatchFacts:
        info = batch.spec_info
        accept = None if info is None or info.accept_length is None else info.accept_length.tolist()
        return BatchFacts(batch.seq_lens.tolist(), accept, self.spec.num_draft_tokens)

    def finish(self) -> None:
        try:
            self.evidence.dirty_launches = self.world.kernels.dirty_launches()
            self.evidence.damaged = self.guards.damaged()
        except RuntimeError:
            # After a device-side assert nothing can be read any more; what failed before is evidence enough.
            if not self.evidence.failures:
                raise


def _overwrite_host_tensors(batch: Batch) -> None:
    """The runner goes on to its next batch: host buffers that it lent are its own again (TRT-LLM#15546)."""
    if batch.seq_lens_cpu is not None:
        batch.seq_lens_cpu.fill_(1)
    if batch.spec_info is not None and batch.spec_info.accept_length_cpu is not None:
        batch.spec_info.accept_length_cpu[:] = [0] * len(batch.spec_info.accept_length_cpu)


@contextmanager
def _uninitialised_memory_is_poison() -> Iterator[None]:
    """`torch.empty` gives NaN and the largest integer instead of what luck left there."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@functools.cache
def _shorten_collections() -> None:
    """Once a process, after the first run has imported all of torch that it needs: every replay collects garbage,
    and those modules need not be looked at each time.
    """
    gc.collect()
    gc.freeze()

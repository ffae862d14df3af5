"""One case on one rank: capture, replay, compare with a single rank and with the oracle, compare notes.

What is captured is the whole of a layer: metadata, attention, output projection, all-reduce; for a draft, a chain of
them.  Each rank also keeps the world of a single rank, where the truth about the requests is loaded; its own world is
cut from that one, and the same pass runs there without a graph and without other ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends import default_backend
from gpu_tests.backends.protocol import Backend, BackendFactory, Batch, Inputs, World
from gpu_tests.backends.runner import Runner
from gpu_tests.contract.cache import copy_of
from gpu_tests.contract.metadata import snapshot
from gpu_tests.contract.scenario import Round
from gpu_tests.contract.truth import Expected, RowTruth, Truth, make_world
from gpu_tests.graphs import Captured, GraphDriver
from gpu_tests.parallel.agreement import LiveRow, Values, metadata_differences, reduced_differences
from gpu_tests.parallel.cases import Case, GraphKey
from gpu_tests.parallel.comms import Comms
from gpu_tests.parallel.report import Finding
from gpu_tests.parallel.split import Share, next_inputs, output_projection, project
from gpu_tests.reference.acceptance import RowError, row_errors
from gpu_tests.reference.paged import PagedKV


class MetadataInGraph:
    """Our backend, its metadata made inside the graph: before a replay nothing is left to compute."""

    def __init__(self, world: World) -> None:
        self._inner: Any = default_backend(world)

    def in_graph(self, batch: Batch) -> None:
        self._inner.use(self._inner.current, batch)

    def replay_prepare(self, batch: Batch) -> None:
        self._inner.current = self._inner.captured[batch.forward_mode, batch.batch_size]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@dataclass(frozen=True)
class StepOut:
    """One step of the layer: attention [T, H, Dv], this rank's product with W_O [T, hidden], and the all-reduced
    buffer [segments, T, hidden]."""

    attention: Tensor
    partial: Tensor
    reduced: Tensor


def run_case(case: Case, driver: GraphDriver, comms: Comms, factory: BackendFactory, findings: list[Finding]) -> None:
    """Add all findings of this rank.  Raises Stopped, and NotSupported if the backend does not serve the world."""
    session = _Session(case, driver, comms, factory, findings)
    if session.capture_all():
        for index, round_ in enumerate(case.rounds(comms.rank, comms.world_size, getattr(factory, "adapt", None))):
            session.play(index, round_)


class _Session:
    def __init__(
        self, case: Case, driver: GraphDriver, comms: Comms, factory: BackendFactory, findings: list[Finding]
    ) -> None:
        self.case, self.driver, self.comms, self.findings = case, driver, comms, findings
        rank, world_size = comms.rank, comms.world_size
        scenario = case.scenario(rank, world_size, getattr(factory, "adapt", None))
        self.spec = scenario.spec
        self.program = case.program(rank, world_size)
        self.shares = [Share.of(case.split, self.spec, r, world_size) for r in range(world_size)]
        self.share = self.shares[rank]

        self.whole = make_world(self.spec, driver.device)
        self.truth = Truth(self.whole, scenario.perturbations)
        self.part = self.shares[self.program.heads_of()].world(self.whole)
        self.single, self.backend = factory(self.whole), factory(self.part)
        self.whole_runner, self.runner = (
            Runner(world, backend.fill_value(), driver.to_host)
            for world, backend in ((self.whole, self.single), (self.part, self.backend))
        )
        self.w_o = output_projection(self.spec, case.hidden, driver.device)
        self.part_w_o = self.w_o[self.shares[self.program.projection_of()].heads].clone()
        self.host_w_o = self.w_o.cpu()
        self.exact_w_o = self.host_w_o.double()
        self.pool = driver.new_pool()
        self.graphs: dict[GraphKey, Captured] = {}

    # -- capture -------------------------------------------------------------------------------------------------

    def capture_all(self) -> bool:
        """Capture every size, the ranks in step.  False if they disagree about what comes next."""
        keys = [(mode, bs) for mode in self.spec.modes for bs in sorted(self.spec.capture_sizes, reverse=True)]
        self.share.load(self.part, self.whole)
        for right, key in zip(keys, self.program.capture_order(list(keys)), strict=True):
            if not self._all_capture(key, right):
                return False
            self._capture(key)
        return True

    def _all_capture(self, key: GraphKey, right: GraphKey) -> bool:
        """NCCL in a capture is recorded, outside of one it runs: ranks that are not in step wait for ever."""
        where = f"before the capture of {right[0]} at {right[1]} rows"
        with self.comms.phase(where):
            chosen = self.comms.exchange("next capture", list(key))
        if key != right:
            message = f"captures {key[0]} at {key[1]} rows; all ranks: {chosen}"
            self.findings.append(Finding("capture_order", self.comms.rank, where, message))
        return all(other == list(right) for other in chosen)

    def _capture(self, key: GraphKey) -> None:
        batch = self.runner.dummy(*key)
        label = f"{key[0]} at {key[1]} rows"
        self.backend.capture_prepare(batch)
        with self.comms.phase(f"warm-up of {label}"):
            self._layer(batch)
        self.comms.exchange("end", label)
        with self.comms.phase(f"capture of {label}"):
            self.graphs[key] = self.driver.capture(lambda: self._layer(batch), self.pool, warmup=0)
        self.comms.exchange("end", label)

    def _layer(self, batch: Batch) -> list[StepOut]:
        """This rank's part of the layer: what is captured."""

        def all_reduced(partial: Tensor, step: int) -> Tensor:
            buffer = torch.zeros(self.share.segments, *partial.shape, dtype=partial.dtype, device=partial.device)
            buffer[self.share.segment].copy_(partial)
            if self.program.reduces(step):
                self.comms.all_reduce(buffer, step)
            self.program.keep_sum(buffer)
            return buffer

        inputs = self.runner.inputs(batch)
        return self._chain(self.backend, batch, inputs, self.part_w_o, self.share.segment, all_reduced)

    def _single_rank(self, batch: Batch) -> list[StepOut]:
        """The whole layer, without a graph and without the other ranks."""
        self.single.eager_prepare(batch)
        inputs = self.whole_runner.inputs(batch)
        return self._chain(self.single, batch, inputs, self.w_o, 0, lambda partial, step: partial[None])

    def _chain(
        self,
        backend: Backend,
        batch: Batch,
        inputs: Sequence[Inputs],
        weight: Tensor,
        segment: int,
        all_reduced: Callable[[Tensor, int], Tensor],
    ) -> list[StepOut]:
        backend.in_graph(batch)
        outs: list[StepOut] = []
        for step, given in enumerate(inputs):
            if outs:
                given = next_inputs(given, self.program.feeds_back(outs[-1].partial, outs[-1].reduced[segment]))
            attention = backend.forward(step, given, batch)
            partial = project(attention, weight)
            outs.append(StepOut(attention, partial, all_reduced(partial, step)))
        return outs

    # -- one pass ------------------------------------------------------------------------------------------------

    def play(self, index: int, round_: Round) -> None:
        where = f"round {index}: {round_.mode}, {len(round_.rows)} live rows on the graph of {round_.bs}"
        feed, rows = self.truth.load(round_)
        graph = self.graphs[round_.mode, round_.bs]
        with self.comms.phase(where):
            self.share.load(self.part, self.whole)
            self.program.receive(self.part, rows)
            batch = self.runner.padded(self.program.feed(self.share.feed(feed)), round_.bs)
            self.backend.replay_prepare(batch)
            if self.program.joins(len(rows)):
                graph.replay()
        outs = [StepOut(*(getattr(o, name).clone() for name in ("attention", "partial", "reduced"))) for o in graph.out]
        published = self.comms.exchange("pass", [_values(self.backend), [_digests(o.reduced) for o in outs]])

        whole_batch = self.whole_runner.padded(feed, round_.bs)
        cache = copy_of(self.whole.kv)
        seen = self._inputs_seen(whole_batch, outs)
        expected = []
        for step, inputs in enumerate(seen):
            self.truth.write(feed, step, inputs, cache)
            expected.append(self.truth.expected(rows, step, inputs, cache))
        single = self._single_rank(whole_batch)
        found = [
            *self._agreement(published, rows, where),
            *self._outputs(outs, single, expected, where),
            *self._cache(cache, where),
        ]
        self.findings += [f for f in found if f.rank == self.comms.rank]

    def _inputs_seen(self, whole_batch: Batch, outs: Sequence[StepOut]) -> list[Inputs]:
        """What each step was to be given, all heads, by what the all-reduces gave."""
        static = self.whole_runner.inputs(whole_batch)
        hidden = [o.reduced[self.share.segment] for o in outs]
        return [next_inputs(x, hidden[i - 1]) if i else x for i, x in enumerate(static)]

    # -- checks --------------------------------------------------------------------------------------------------

    def _agreement(self, published: Sequence[Sequence[object]], rows: Sequence[RowTruth], where: str) -> list[Finding]:
        values, digests = zip(*published, strict=True)
        found = reduced_differences(digests, where)
        if self.case.split == "heads":
            live = [LiveRow(row.index, row.name, len(row.pages)) for row in rows]
            found += metadata_differences(values, _values(self.single), live, where)
        return found

    def _outputs(
        self, outs: Sequence[StepOut], single: Sequence[StepOut], expected: Sequence[Sequence[Expected]], where: str
    ) -> list[Finding]:
        """The first level that is wrong, for each row and step.

        control: the single rank is wrong itself.  attention: over this rank's heads.  partial: its product with W_O.
        output: the sum of all ranks.  single_rank: right in each step, but a chain of steps drifts from a single rank.
        """
        found = []
        for step, of_step in enumerate(expected):
            for row in of_step:
                for check, errors in self._row_errors(step, row, outs[step], single[step]):
                    if errors:
                        found.append(
                            Finding(
                                check, self.comms.rank, where, str(errors[0]), step, None, row.row.index, row.row.name
                            )
                        )
                        break
        return found

    def _row_errors(self, step: int, row: Expected, out: StepOut, single: StepOut) -> list[tuple[str, list[RowError]]]:
        tokens = slice(row.row.tokens.start, row.row.tokens.start + len(row.oracle))
        dtype, heads = self.spec.torch_dtype, self.share.heads
        oracle, low_precision = row.oracle[:, heads], row.low_precision[:, heads]
        right = project(row.oracle, self.exact_w_o)[:, None]
        summed = self.shares if self.case.split == "heads" else [self.share]
        low = reduce(torch.add, [self._low_partial(row, share) for share in summed])[:, None]
        my_right, my_low = project(oracle, self.exact_w_o[heads])[:, None], self._low_partial(row, self.share)[:, None]
        attention, partial = out.attention[tokens].cpu(), out.partial[tokens].cpu()[:, None]
        reduced, alone = out.reduced[self.share.segment, tokens].cpu()[:, None], single.partial[tokens].cpu()[:, None]
        # Both may be wrong by the allowance, and a chain adds one more of it a step.
        far = alone + 2 * (step + 1) * (low.double() - right)
        return [
            ("control", row_errors(alone, right, low, dtype) if step == 0 else []),
            ("attention", row_errors(attention, oracle, low_precision, dtype)),
            ("partial", row_errors(partial, my_right, my_low, dtype)),
            ("output", row_errors(reduced, right, low, dtype)),
            ("single_rank", row_errors(reduced, alone.double(), far, dtype)),
        ]

    def _low_partial(self, row: Expected, share: Share) -> Tensor:
        """[tokens, hidden]: a rank's product, rounded as a matmul in the dtype rounds it."""
        compute = torch.promote_types(self.spec.torch_dtype, torch.float32)
        weight = self.host_w_o[share.heads].to(compute)
        return project(row.low_precision[:, share.heads].to(compute), weight).to(self.spec.torch_dtype)

    def _cache(self, cache: PagedKV, where: str) -> list[Finding]:
        """Every page of this rank's cache holds, bit for bit, what the pass had to leave (page 0: padded rows)."""
        sides = [(self.part.kv.k, cache.k)] + ([] if cache.mla else [(self.part.kv.v, cache.v)])
        found = []
        for ours, whole in sides:
            right = whole[1:, :, self.share.kv_heads]
            wrong = (ours[1:] != right) & ~(ours[1:].isnan() & right.isnan())
            if wrong.any():
                pages = (wrong.flatten(1).any(1).nonzero().flatten() + 1).tolist()
                message = f"pages {pages} of the cache do not hold what the pass had to write"
                found.append(Finding("kv", self.comms.rank, where, message))
        return found


def _values(backend: Backend) -> Values:
    """The metadata in use, as JSON."""
    fields = snapshot(backend.metadata_objects())
    return {name: f.value.tolist() if isinstance(f.value, Tensor) else f.value for name, f in fields.items()}


def _digests(reduced: Tensor) -> list[str]:
    """One digest for each token of each segment."""
    rows = reduced.flatten(0, 1).cpu().contiguous().view(torch.uint8).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=6).hexdigest() for row in rows]

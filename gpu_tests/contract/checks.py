"""The checks: evidence in, findings out.  Each has a name, and each is the reason that at least one fault is caught.

`CHECKS` maps a name to what it demands; `judge(evidence)` runs them all.  What is known or allowed is taken out by
`Exemption`s, which need a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_tests.backends.protocol import ProtocolError
from gpu_tests.contract.evidence import Evidence, Execution, ReplayRecord, SideBySide
from gpu_tests.contract.metadata import Value, equal, words
from gpu_tests.contract.truth import Expected
from gpu_tests.graphs.sites import site_of_error
from gpu_tests.reference.acceptance import RowError, row_errors

CHECKS: dict[str, str] = {
    "guards": "no buffer is written past its ends",
    "workspace": "the counters in a kernel's workspace are zero on entry",
    "host_sync": "neither a graph nor replay_prepare makes the host wait for the device",
    "capture": "every size can be captured",
    "replay": "every round can be prepared and replayed",
    "kernel_lengths": "a kernel never sees a length below 1 for a live row",
    "stability": "metadata keeps address, shape, strides and dtype from capture to replay",
    "coverage": "offsets start at 0, do not decrease, and cover the rows of the query",
    "same_metadata": "capture_prepare and replay_prepare make the same metadata of the same batch",
    "program": "captures with different batches are the same program",
    "kv_footprint": "exactly the expected KV bytes are written",
    "twins": "the same request twice in a batch gives the same bits",
    "neighbours": "the same request on the same graph gives the same bits whatever else is in the batch",
    "anomaly": "NaN and Inf stand only where the oracle has them",
    "nan_flag": "no output that counts is NaN in any run, the first warm-up included (a device flag in the graph)",
    "eager": "the eager control, on an instance of its own, returns what the oracle says",
    "output": "a replay returns what the oracle says, row by row",
    "capture_output": "the run before capture returns what the oracle says, row by row",
    "eager_match": "a replay and an accepted eager control of the same batch size agree bit for bit",
    "sensitivity": "requests that differ give outputs that differ",
}
"""From the cause to the symptom: the first that fails is the headline of a report."""


@dataclass(frozen=True)
class Finding:
    """One violation: the check, where in the schedule, what, and the metadata of the replay that shows it."""

    check: str
    label: str
    message: str
    row: str = ""
    field: str = ""
    metadata: SideBySide | None = None

    def __str__(self) -> str:
        return f"{self.check}: {self.label}: {f'{self.row}: ' if self.row else ''}{self.message}"


@dataclass(frozen=True)
class Exemption:
    """Findings that are not held against a backend, and why.

    Allowed for good: name the `check` and the `field` that is scratch.  A known bug: name the `world` that shows it,
    and its thread in the reason.
    """

    check: str
    reason: str
    field: str = ""
    world: str = ""

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise ValueError(f"no check {self.check!r}: they are {', '.join(CHECKS)}")
        if not self.reason.strip():
            raise ValueError(f"an exemption from {self.check!r} needs a reason")

    def covers(self, finding: Finding, world: str) -> bool:
        return (
            self.check == finding.check
            and self.field in ("", finding.field.partition("[")[0])
            and self.world in ("", world)
        )


def headline(findings: Iterable[Finding]) -> str | None:
    """The check that is nearest to the cause."""
    failed = {f.check for f in findings}
    return next((check for check in CHECKS if check in failed), None)


def judge(evidence: Evidence, exemptions: Iterable[Exemption] = ()) -> list[Finding]:
    """All findings, in the order of the schedule."""
    exempt, world = list(exemptions), evidence.scenario.world
    return [f for f in _all(evidence) if not any(e.covers(f, world) for e in exempt)]


def _all(evidence: Evidence) -> Iterator[Finding]:
    dtype = evidence.scenario.spec.torch_dtype
    for failure in evidence.failures:
        yield Finding(failure.check, failure.label, _raised(failure.error), metadata=failure.metadata)
    for execution in evidence.captures:
        yield from _outputs(execution, dtype, "capture_output", None)
        yield from _kernel_lengths(execution, None)
        yield from _nan_flags(execution, None)
    for record in evidence.replays:
        yield from _replay(record, dtype)
    yield from _bits_of_requests(evidence)
    if evidence.dirty_launches:
        yield Finding("workspace", "", f"{evidence.dirty_launches} kernel launches found dirty counters")
    for buffer in evidence.damaged:
        yield Finding("guards", "", f"written past its end: {buffer}")


def _raised(error: Exception) -> str:
    """What was raised and where; an error that says where by itself, or that is no line's fault, speaks alone."""
    site, text = site_of_error(error), str(error)
    if isinstance(error, ProtocolError):
        return text
    return f"{type(error).__name__}: {text}" if text.startswith(site) else f"{type(error).__name__} at {site}: {text}"


def _replay(record: ReplayRecord, dtype: torch.dtype) -> Iterator[Finding]:
    replay, eager = record.replay, record.eager
    wrong = list(_outputs(replay, dtype, "output", record.metadata))
    yield from wrong
    yield from _kernel_lengths(replay, record.metadata)
    yield from _nan_flags(replay, record.metadata)
    if eager is not None:
        wrong_without_graph = list(_outputs(eager, dtype, "eager", record.metadata))
        yield from wrong_without_graph
        # Kernels choose splits by the batch size: bits are comparable at equal sizes only.
        if not wrong and not wrong_without_graph and eager.bs == replay.bs:
            yield from _eager_match(record, eager)
    for sync in record.syncs:
        yield Finding(
            "host_sync",
            replay.label,
            f"replay_prepare waits at {sync.site}: {sync.op}",
            metadata=record.metadata,
        )
    for problem in record.kv_problems[:4]:
        yield Finding("kv_footprint", replay.label, f"unexpected bytes: {problem}", metadata=record.metadata)
    for difference in record.program_differences[:4]:
        yield Finding("program", replay.label, difference, metadata=record.metadata)
    yield from _stability(record)
    yield from _same_metadata(record)
    yield from _coverage(record)


def _outputs(execution: Execution, dtype: torch.dtype, check: str, metadata: SideBySide | None) -> Iterator[Finding]:
    for step, rows in enumerate(execution.expected):
        for expected in rows:
            for error in _row_errors(execution, step, expected, dtype):
                anomaly = error.reason.startswith("NaN")
                name = "anomaly" if anomaly and check == "output" else check
                yield Finding(
                    name,
                    execution.label,
                    f"step {step}, {error}; {_got_and_expected(execution, step, expected, error)}",
                    row=f"row {expected.row.index}, {expected.row.name}",
                    metadata=metadata,
                )


def _row_errors(execution: Execution, step: int, expected: Expected, dtype: torch.dtype) -> list[RowError]:
    out, roundings = _rows(execution, step, expected), expected.roundings
    return row_errors(out, expected.oracle, expected.low_precision, dtype, roundings=roundings)[:1]


def _rows(execution: Execution, step: int, expected: Expected) -> Tensor:
    start = expected.row.tokens.start
    return execution.outs[step][start : start + expected.row.compared]


def _got_and_expected(execution: Execution, step: int, expected: Expected, error: RowError) -> str:
    got = _rows(execution, step, expected)[error.token, error.head][:3].tolist()
    want = expected.oracle[error.token, error.head][:3].tolist()
    return f"got {_short(got)}, expected {_short(want)}"


def _short(numbers: list[float]) -> str:
    return f"[{', '.join(f'{n:.4g}' for n in numbers)}, ...]"


def _eager_match(record: ReplayRecord, eager: Execution) -> Iterator[Finding]:
    replay = record.replay
    for step, (ours, theirs) in enumerate(zip(replay.expected, eager.expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            x, y = _rows(replay, step, a), _rows(eager, step, b)
            if not torch.equal(x.nan_to_num(), y.nan_to_num()):
                yield Finding(
                    "eager_match",
                    replay.label,
                    f"step {step}: replay and eager differ by up to {(x - y).abs().max():.3g}",
                    row=f"row {a.row.index}, {a.row.name}",
                    metadata=record.metadata,
                )


def _kernel_lengths(execution: Execution, metadata: SideBySide | None) -> Iterator[Finding]:
    for step, call in enumerate(execution.calls):
        seen = call["seq_lens"].tolist()
        for row in execution.rows:
            if seen[row.index] < 1:
                message = f"step {step}: the kernel saw length {seen[row.index]}; all rows: {seen}"
                yield Finding(
                    "kernel_lengths",
                    execution.label,
                    message,
                    row=f"row {row.index}",
                    metadata=metadata,
                )


def _nan_flags(execution: Execution, metadata: SideBySide | None) -> Iterator[Finding]:
    for step in execution.nan_steps:
        yield Finding("nan_flag", execution.label, f"step {step} raised its NaN flag", metadata=metadata)


def _stability(record: ReplayRecord) -> Iterator[Finding]:
    for name, before in record.captured.items():
        after = record.replay.metadata.get(name)
        if before.tensor is None:
            continue
        if after is None or after.tensor is None:
            message = f"{name} is gone at replay"
        elif before.layout != after.layout:
            message = f"{name}: {before.layout} at capture, {after.layout} at replay"
        elif before.address != after.address:
            message = f"{name}: bound to another tensor at replay; the graph still reads the captured one"
        else:
            continue
        yield Finding("stability", record.replay.label, message, field=name, metadata=record.metadata)


def _same_metadata(record: ReplayRecord) -> Iterator[Finding]:
    if record.witness is None:
        return
    facts = record.replay.facts
    for name, fresh in record.witness.items():
        ours = record.replay.metadata.get(name)
        if isinstance(fresh.value, Tensor) and fresh.value.dtype.is_floating_point:
            continue  # scratch
        if ours is None or equal(fresh, ours):
            continue
        if _same_pages(fresh.value, ours.value, record):
            continue
        yield Finding(
            "same_metadata",
            record.replay.label,
            f"{name}: {words(fresh.value, facts)} by capture_prepare, {words(ours.value, facts)} by replay_prepare",
            field=name,
            metadata=record.metadata,
        )


def _same_pages(a: Value, b: Value, record: ReplayRecord) -> bool:
    """Whether both are page tables that agree; past a row's last page they may hold anything."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() == 2 and a.shape == b.shape):
        return False
    return all(
        torch.equal(a[row.index, : len(row.pages)], b[row.index, : len(row.pages)]) for row in record.replay.rows
    )


def _coverage(record: ReplayRecord) -> Iterator[Finding]:
    """Offsets in the metadata, written-only ones too: sglang#21987's are never read in graph mode."""
    replay = record.replay
    live = max((row.tokens.stop for row in replay.rows), default=0)
    for name, field in replay.metadata.items():
        value = field.value
        if not isinstance(value, Tensor) or value.dim() != 1 or not _is_query_offsets(name):
            continue
        offsets = value.tolist()
        starts = [row.tokens.start for row in replay.rows]
        if offsets[0] != 0 or sorted(offsets) != offsets:
            message = f"{name} {offsets} does not start at 0 or decreases"
        elif offsets[: len(starts)] != starts or not live <= offsets[-1] <= replay.num_tokens:
            message = (
                f"{name} {offsets} does not cover the {replay.num_tokens} rows of the query: rows start at {starts}"
            )
        else:
            continue
        yield Finding("coverage", replay.label, message, field=name, metadata=record.metadata)


def _is_query_offsets(name: str) -> bool:
    return name.partition("[")[0] in ("cu_seqlens_q", "qo_indptr", "query_start_loc")


def _beside(evidence: Evidence, replay: Execution, step: int, expected: Expected) -> object:
    """What else than the request itself its bits may depend on.

    Nothing on the split grid.  A balanced grid cuts the keys of the whole batch into equal runs: where a request is cut
    follows from its place and from all lengths, those of padded rows included.  Twins then stand at two places of one
    line, and are held together by the oracle's bounds alone; a replay and its eager control of the same size have the
    same lengths, and agree bit for bit on both grids.
    """
    if evidence.scenario.spec.grid == "split":
        return None
    return expected.row.index, tuple(replay.calls[step]["seq_lens"].tolist())


def _bits_of_requests(evidence: Evidence) -> Iterator[Finding]:
    """twins, neighbours and sensitivity: bits of equal requests agree, bits of different ones do not."""
    same: dict[tuple[object, ...], tuple[bytes, Execution, int]] = {}
    owner: dict[tuple[object, bytes], tuple[tuple[object, ...], str]] = {}
    for record in evidence.replays:
        replay = record.replay
        for step, rows in enumerate(replay.expected):
            for expected in rows:
                got, row = _rows(replay, step, expected), expected.row
                if not torch.isfinite(got).all():
                    continue  # `anomaly` has it
                label, where = replay.label, f"row {row.index}, {row.name}"
                key = (replay.mode, replay.bs, step, row.identity, _beside(evidence, replay, step, expected))
                bits = got.contiguous().view(torch.uint8).numpy().tobytes()
                first, execution, index = same.setdefault(key, (bits, replay, row.index))
                if first != bits:
                    name = "twins" if execution is replay else "neighbours"
                    other = f"row {index} of {execution.label}"
                    yield Finding(
                        name,
                        label,
                        f"step {step}: other bits than {other}",
                        row=where,
                        metadata=record.metadata,
                    )
                head = (step, got[0].contiguous().view(torch.uint8).numpy().tobytes())
                request, its_label = owner.setdefault(head, (row.distinct, label))
                if request != row.distinct:
                    message = f"step {step}: the same output as for {request} in {its_label}"
                    yield Finding("sensitivity", label, message, row=where, metadata=record.metadata)

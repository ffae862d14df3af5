"""What the emulation of CUDA graphs promises, one rule a test (`docs/graph-emulation.md` has them in prose)."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from gpu_tests.graphs import (
    CaptureError,
    CpuGraphDriver,
    DanglingPointerError,
    DeviceMixError,
    HostCopyError,
    HostReadError,
    ReplayError,
    SyncError,
    UncapturableKernelError,
    UnsupportedOpError,
    available_drivers,
    opaque,
)

pytestmark = pytest.mark.suite("graph-emulation", gpus=0, est="30s")

DEVICE = CpuGraphDriver.device


@pytest.fixture
def emulation() -> CpuGraphDriver:
    return CpuGraphDriver()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


def test_the_emulation_is_always_available() -> None:
    assert any(isinstance(d, CpuGraphDriver) for d in available_drivers())


# What is live and what is frozen.


def test_contents_are_live(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    graph = emulation.capture(lambda: (x * 2).sum())
    x.fill_(1)
    graph.replay()
    assert graph.out == 12


def test_pointers_are_frozen(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    box = {"x": x}
    graph = emulation.capture(lambda: box["x"] + 1)
    box["x"] = torch.full_like(x, 50)
    graph.replay()
    assert torch.equal(graph.out, x + 1)


def test_host_numbers_are_frozen(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    box = {"n": 1}
    graph = emulation.capture(lambda: x[: box["n"]] * box["n"])
    box["n"] = 2
    graph.replay()
    assert torch.equal(graph.out, x[:1])


def test_values_of_0_dim_host_tensors_are_frozen(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    scale = emulation.to_host(torch.tensor(3.0))
    graph = emulation.capture(lambda: x * scale)
    scale.fill_(9)
    graph.replay()
    assert torch.equal(graph.out, x * 3)


def test_copies_from_pinned_memory_are_live(emulation: CpuGraphDriver) -> None:
    pinned, target = emulation.to_host(torch.zeros(3), pinned=True), torch.zeros(3)
    graph = emulation.capture(lambda: target.copy_(pinned, non_blocking=True))
    pinned.fill_(4)
    graph.replay()
    assert target.tolist() == [4, 4, 4]


def test_writes_through_views_reach_their_base(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    graph = emulation.capture(lambda: x.t()[1:].mul_(10), warmup=0)
    graph.replay()
    assert x.tolist() == [[0, 10, 20], [3, 40, 50]]


def test_out_arguments_are_written_in_place(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    out = torch.zeros_like(x)
    graph = emulation.capture(lambda: torch.add(x, 1, out=out))
    out.zero_()
    graph.replay()
    assert torch.equal(out, x + 1)


def test_one_graph_feeds_another(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    first = emulation.capture(lambda: x + 1)
    second = emulation.capture(lambda: first.out * 10)
    x.zero_()
    first.replay()
    second.replay()
    assert second.out.unique().tolist() == [10]


def test_composites_under_inference_mode_are_recorded(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    def step() -> torch.Tensor:
        with torch.inference_mode():
            return torch.nn.functional.linear(x, x).reshape(-1) * 2

    graph = emulation.capture(step)
    x.fill_(1)
    graph.replay()
    assert graph.out.tolist() == [6, 6, 6, 6]


def test_backward_passes_are_recorded(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    def step() -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad((leaf**2).sum(), leaf)[0]

    graph = emulation.capture(step)
    x.fill_(5)
    graph.replay()
    assert graph.out.unique().tolist() == [10]


# Capture has no effect.


def test_capture_does_not_execute(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    before = x.clone()
    emulation.capture(lambda: x.add_(1), warmup=0)
    assert torch.equal(x, before)


def test_a_refused_capture_leaves_memory_alone(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    before = x.clone()
    with pytest.raises(HostReadError):
        emulation.capture(lambda: x.add_(1).sum().item(), warmup=0)
    assert torch.equal(x, before)


def test_warmup_executes(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    emulation.capture(lambda: x.add_(1), warmup=2)
    assert x[0, 0] == 2


def test_capture_keeps_the_random_state_and_replays_advance_it(emulation: CpuGraphDriver) -> None:
    torch.manual_seed(0)
    expected = [torch.rand(2) for _ in range(2)]
    torch.manual_seed(0)
    graph = emulation.capture(lambda: torch.rand(2, device=DEVICE), warmup=0)
    for stream in expected:
        graph.replay()
        assert torch.equal(graph.out, stream)


def test_stale_indices_at_capture_are_not_looked_at(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    index = torch.full((4,), 999)
    graph = emulation.capture(lambda: x.index_select(1, index).sum(1), warmup=0)
    index.zero_()
    graph.replay()
    assert graph.out.tolist() == [0, 12]


def test_wrong_shapes_fail_at_capture(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        emulation.capture(lambda: x @ x, warmup=0)


def test_overlapping_writes_fail_at_capture(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        emulation.capture(lambda: x[0].expand(2, 3).add_(1), warmup=0)


# Private memory is poisoned.


def test_outputs_are_poison_before_the_first_replay(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    graph = emulation.capture(lambda: (x + 1, x.argmax(1)))
    assert graph.out[0].isnan().all()
    assert (graph.out[1] == torch.iinfo(torch.int64).max).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8])
def test_empty_memory_is_poison_at_every_replay(emulation: CpuGraphDriver, dtype: torch.dtype) -> None:
    def half_written() -> torch.Tensor:
        work = torch.empty(4, dtype=dtype, device=DEVICE)
        work[:2].fill_(1)
        return work

    graph = emulation.capture(half_written)
    for _ in range(2):
        graph.replay()
        tail = graph.out[2:]
        assert graph.out[:2].tolist() == [1, 1]
        assert (tail.isnan() if dtype.is_floating_point else tail == torch.iinfo(dtype).max).all()


def test_a_constant_made_in_one_graph_is_poison_until_that_graph_ran(
    emulation: CpuGraphDriver, x: torch.Tensor
) -> None:
    made: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        if not made:
            made.append(torch.full((3,), 2.0, device=DEVICE))
        return x * made[0]

    first, second = emulation.capture(step, warmup=0), emulation.capture(step, warmup=0)
    second.replay()
    assert second.out.isnan().all()
    first.replay()
    second.replay()
    assert torch.equal(second.out, x * 2)


# Refusals: what the host may not do while a graph is captured.

REFUSED: dict[str, tuple[type[CaptureError], Callable[[torch.Tensor], object]]] = {
    "item": (HostReadError, lambda x: x.sum().item()),
    "bool": (HostReadError, lambda x: 1 if x.any() else 0),
    "int": (HostReadError, lambda x: int(x[0, 0])),
    "tolist": (HostReadError, lambda x: x.tolist()),
    "cpu": (HostReadError, lambda x: x.cpu()),
    "to cpu": (HostReadError, lambda x: x.to("cpu")),
    "numpy": (HostReadError, lambda x: x.numpy()),
    "print": (HostReadError, lambda x: print(x)),
    "format": (HostReadError, lambda x: f"{x[0, 0]:.2f}"),
    "nonzero": (HostReadError, lambda x: x.nonzero()),
    "mask index": (HostReadError, lambda x: x[x > 1]),
    "unique": (HostReadError, lambda x: x.unique()),
    "slice by a tensor": (HostReadError, lambda x: x[: x.argmax()]),
    "fill by a device scalar": (HostReadError, lambda x: x.masked_fill_(x > 1, x[0, 1])),
    "list of device scalars": (HostReadError, lambda x: torch.tensor([x[0, 0], x[0, 1]])),
    "list index": (HostCopyError, lambda x: x[[0, 1]]),
    "bool list index": (HostCopyError, lambda x: x[[True, False]]),
    "number into one element": (HostCopyError, lambda x: x.__setitem__((0, 1), 5.0)),
    "number through an index": (HostCopyError, lambda x: x.__setitem__(x[0].long() % 2, 5.0)),
    "torch.tensor on the device": (HostCopyError, lambda x: torch.tensor([1.0], device=DEVICE)),
    "as_tensor on the device": (HostCopyError, lambda x: torch.as_tensor([1.0], device=DEVICE)),
    "new_tensor": (HostCopyError, lambda x: x.new_tensor([1.0])),
    "pageable copy": (HostCopyError, lambda x: x.copy_(torch.ones(2, 3), non_blocking=True)),
    "host tensor to the device": (HostCopyError, lambda x: torch.ones(3).to(DEVICE)),
    "factory without device": (DeviceMixError, lambda x: x + torch.arange(3)),
    "factory on the string cpu": (DeviceMixError, lambda x: x + torch.zeros(3, device="cpu")),
    "foreign generator": (UnsupportedOpError, lambda x: torch.rand(2, device=DEVICE, generator=torch.Generator())),
    "sparse tensor": (UnsupportedOpError, lambda x: x.to_sparse()),
    "isin of many": (HostReadError, lambda x: torch.isin(x, torch.arange(100, device=DEVICE))),
    "clamp by a host scalar": (DeviceMixError, lambda x: torch.clamp(x, max=torch.tensor(1.0))),
    "svd": (UncapturableKernelError, lambda x: torch.linalg.svd(x)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_capture_refuses(emulation: CpuGraphDriver, x: torch.Tensor, name: str) -> None:
    error, step = REFUSED[name]
    with pytest.raises(error) as caught:
        emulation.capture(lambda: step(x), warmup=0)
    assert caught.type is error


ACCEPTED: dict[str, Callable[[torch.Tensor], object]] = {
    "number into a row": lambda x: x.__setitem__(0, 5.0),
    "number through a mask": lambda x: x.__setitem__(x > 1, 5.0),
    "tensor through an index": lambda x: x.__setitem__(x[0].long() % 2, x[0] * 2),
    "device index": lambda x: x[x[0].long() % 2],
    "isin of few": lambda x: torch.isin(x, x[0]),
    "host arithmetic": lambda x: x * torch.tensor([1.0, 2.0]).sum().item(),
    "a dtype change": lambda x: x.to(torch.float16),
    "moving to its own device": lambda x: x.to(DEVICE) + torch.zeros(3, device=x.device),
    "a device context": lambda x: x + _zeros_in_device_context(),
    "one_hot with a count": lambda x: torch.nn.functional.one_hot(x.long(), 6),
    "histc with a range": lambda x: torch.histc(x, 4, 0, 6),
    "multinomial": lambda x: torch.multinomial(x + 1, 1),
    "repeat_interleave with a size": lambda x: x.repeat_interleave(x[:, 0].long() * 0 + 2, 0, output_size=4),
}


def _zeros_in_device_context() -> torch.Tensor:
    with DEVICE:
        return torch.zeros(3)


@pytest.mark.parametrize("name", ACCEPTED)
def test_capture_accepts(emulation: CpuGraphDriver, x: torch.Tensor, name: str) -> None:
    graph = emulation.capture(lambda: ACCEPTED[name](x), warmup=0)
    graph.replay()


def test_a_refusal_names_the_op_the_reason_and_the_line(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    def step() -> object:
        return x.sum().item()

    line = step.__code__.co_firstlineno + 1
    with pytest.raises(HostReadError) as caught:
        emulation.capture(step, warmup=0)
    assert caught.value.site.endswith(f"test_graph_emulation.py:{line}")
    assert caught.value.op in str(caught.value)
    assert caught.value.reason in str(caught.value)


# Lifetime.


def _captured_and_freed(emulation: CpuGraphDriver) -> object:
    scratch = torch.full((3,), 7.0)
    holder = {"scratch": scratch}
    graph = emulation.capture(lambda: holder["scratch"] * 2)
    holder.clear()
    return graph


def test_a_freed_tensor_is_named_at_replay(emulation: CpuGraphDriver) -> None:
    graph = _captured_and_freed(emulation)
    with pytest.raises(DanglingPointerError, match=r"test_graph_emulation.py:\d+: .*`scratch` float32\[3\].* freed"):
        graph.replay()


def test_a_freed_tensor_may_read_as_poison() -> None:
    graph = _captured_and_freed(CpuGraphDriver(on_dangling="poison"))
    graph.replay()
    assert graph.out.isnan().all()


def test_a_freed_tensor_may_be_kept() -> None:
    graph = _captured_and_freed(CpuGraphDriver(on_dangling="keep"))
    graph.replay()
    assert graph.out.tolist() == [14, 14, 14]


def test_a_buffer_held_by_a_cycle_alone_counts_as_freed(emulation: CpuGraphDriver) -> None:
    class Node:
        def __init__(self) -> None:
            self.me, self.buffer = self, torch.ones(3)

    box = [Node()]
    graph = emulation.capture(lambda: box[0].buffer + 1)
    box.clear()
    with pytest.raises(DanglingPointerError):
        graph.replay()


def test_a_buffer_that_grew_is_another_buffer(emulation: CpuGraphDriver) -> None:
    buffer = torch.ones(3)
    graph = emulation.capture(lambda: buffer + 1)
    buffer.resize_(4096)
    with pytest.raises(DanglingPointerError, match="re-allocated"):
        graph.replay()


def test_a_graph_keeps_its_own_memory(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    graph = emulation.capture(lambda: ((x + 1) * 2).sum())
    gc.collect()
    x.zero_()
    graph.replay()
    assert graph.out == 12


# Pools.


def test_an_earlier_graph_may_clobber_a_later_one(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    pool = emulation.new_pool()
    first = emulation.capture(lambda: (x + 1) * 2, pool)  # its temporary x + 1 is dead now
    second = emulation.capture(lambda: x + 4, pool)
    second.replay()
    assert torch.equal(second.out, x + 4)
    first.replay()
    assert second.out.isnan().all()


def test_a_later_graph_spares_the_outputs_of_an_earlier_one(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    pool = emulation.new_pool()
    first, second = emulation.capture(lambda: (x + 1) * 2, pool), emulation.capture(lambda: (x + 4) * 2, pool)
    first.replay()
    second.replay()
    assert torch.equal(first.out, (x + 1) * 2)


def test_a_graph_without_dead_memory_clobbers_nothing(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    pool = emulation.new_pool()
    first, second = emulation.capture(lambda: x + 1, pool), emulation.capture(lambda: x + 4, pool)
    second.replay()
    first.replay()
    assert torch.equal(second.out, x + 4)


def test_graphs_of_different_pools_leave_each_other_alone(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    first, second = emulation.capture(lambda: (x + 1) * 2), emulation.capture(lambda: x + 4)
    second.replay()
    first.replay()
    assert torch.equal(second.out, x + 4)


# Opaque kernels.


def _row_sums(lengths: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    """A kernel that reads its metadata as a real one does: on its own, not through recorded ops."""
    for row, length in enumerate(lengths.tolist()):
        out[row] = values[row, :length].sum()


@torch.library.custom_op("nightcap_tests::row_sums", mutates_args=("out",))
def _row_sums_op(lengths: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    _row_sums(lengths, values, out)


@pytest.mark.parametrize("kernel", [opaque(_row_sums), _row_sums_op], ids=["opaque", "custom_op"])
def test_an_opaque_kernel_reads_its_metadata_at_replay(
    emulation: CpuGraphDriver, x: torch.Tensor, kernel: Callable[..., None]
) -> None:
    lengths, out = torch.tensor([1, 1]), torch.full((2,), -1.0)
    graph = emulation.capture(lambda: kernel(lengths, x, out), warmup=0)
    assert out.tolist() == [-1, -1]
    assert len(graph.program.nodes) == 1
    lengths.copy_(torch.tensor([3, 2]))
    graph.replay()
    assert out.tolist() == [3, 7]


def test_an_opaque_kernel_may_allocate_its_result(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    graph = emulation.capture(lambda: opaque(lambda t: torch.tensor(t.tolist()))(x) + 1)
    x.zero_()
    graph.replay()
    assert graph.out.unique().tolist() == [1]


def test_an_opaque_kernel_gets_the_host_numbers_of_capture_time(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    splits, host_lengths = [2, 1], emulation.to_host(torch.tensor([1, 2]))
    graph = emulation.capture(lambda: opaque(lambda t, s, h: t * (sum(s) + int(h.sum())))(x, splits, host_lengths))
    splits[0] = 100
    host_lengths.fill_(100)
    graph.replay()
    assert torch.equal(graph.out, x * 6)


def test_kernels_inside_a_kernel_are_no_nodes(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    inner = opaque(lambda t: t.mul_(2))
    graph = emulation.capture(lambda: opaque(lambda t: inner(t).add_(1))(x), warmup=0)
    assert len(graph.program.nodes) == 1


def test_interpreted_triton_launches_are_opaque(
    emulation: CpuGraphDriver, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterpretedFunction:
        """As in triton.runtime.interpreter: runs on numpy, out of torch's sight."""

        arg_names = ("lengths", "values", "out")
        fn = staticmethod(_row_sums)

        def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
            assert grid == (2,)
            self.fn(*args)

    monkeypatch.setitem(
        sys.modules, "triton.runtime.interpreter", SimpleNamespace(InterpretedFunction=InterpretedFunction)
    )
    lengths, out = torch.tensor([1, 1]), torch.zeros(2)
    graph = emulation.capture(
        lambda: InterpretedFunction().run(lengths, x, out, grid=lambda meta: (len(meta["lengths"]),), warmup=False),
        warmup=0,
    )
    lengths.fill_(3)
    graph.replay()
    assert out.tolist() == [3, 12]
    assert [node.op for node in graph.program.nodes] == ["_row_sums"]


def test_outside_a_capture_an_opaque_kernel_is_a_plain_call(x: torch.Tensor) -> None:
    assert opaque(lambda t: t.sum().item())(x) == 15


# Replay errors.


def test_an_index_out_of_range_at_replay_names_op_and_line(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    index = torch.tensor([0])
    graph = emulation.capture(lambda: x.index_select(0, index))
    index.fill_(2)
    with pytest.raises(ReplayError, match=r"test_graph_emulation.py:\d+: aten.index_select failed at replay"):
        graph.replay()


# Program diff.


def _capture_with(emulation: CpuGraphDriver, x: torch.Tensor, rows: int) -> object:
    return emulation.capture(lambda: x[:rows].sum(0))


def test_equal_captures_have_no_difference(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    assert emulation.diff(_capture_with(emulation, x, 2), _capture_with(emulation, x, 2)) == []


def test_other_buffers_in_the_same_roles_are_no_difference(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    assert emulation.diff(_capture_with(emulation, x, 2), _capture_with(emulation, x.clone(), 2)) == []


def test_a_shape_that_leaked_from_the_host_is_said_in_words(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    (words,) = emulation.diff(_capture_with(emulation, x, 1), _capture_with(emulation, x, 2))
    assert "aten.sum" in words
    assert "float32[1, 3]" in words
    assert "float32[2, 3]" in words
    assert "test_graph_emulation.py" in words


DIFFERENT: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object], str]] = {
    "host number": (lambda x: x * 2, lambda x: x * 3, "host 2 in the first, host 3 in the second"),
    "frozen tensor": (lambda x: x * torch.tensor(2.0), lambda x: x * torch.tensor(4.0), "host 2.0 in the first"),
    "op": (lambda x: x + 1, lambda x: x - 1, "aten.add"),
    "length": (lambda x: x + 1, lambda x: x + 1 + 1, "1 nodes in the first, 2 in the second"),
    "buffer": (lambda x: x + x, lambda x: x + x.new_zeros(3), "in the second"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_programs_differ_in(emulation: CpuGraphDriver, x: torch.Tensor, name: str) -> None:
    first, second, words = DIFFERENT[name]
    differences = emulation.diff(emulation.capture(lambda: first(x)), emulation.capture(lambda: second(x)))
    assert any(words in d for d in differences), differences


# Plain code outside a graph.


def test_the_sync_guard_lists_host_reads_with_their_line(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    with emulation.sync_guard() as syncs:
        total = x.sum().item()
        x.add_(1)
        indices = torch.tensor([1.0, 2.0], device=DEVICE)
    assert total == 15
    assert indices.tolist() == [1, 2]
    assert [s.op for s in syncs] == ["aten._local_scalar_dense", "torch.tensor(device=)"]
    assert all("test_graph_emulation.py:" in s.site for s in syncs)


def test_the_sync_guard_forbids(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    with pytest.raises(SyncError, match=r"test_graph_emulation\.py:\d+"), emulation.sync_guard(forbid=True):
        x.max().item()


def test_the_sync_guard_lets_host_tensors_and_async_copies_pass(emulation: CpuGraphDriver, x: torch.Tensor) -> None:
    lengths, pinned = emulation.to_host(torch.tensor([1, 2])), emulation.to_host(torch.zeros(3), pinned=True)
    with emulation.sync_guard(forbid=True):
        longest = lengths.max().item()
        x[0].copy_(pinned, non_blocking=True)
        x[:longest].mul_(2)
    assert longest == 2


# All of torch: a few operators here, the whole table in the nightly job.

OPERATORS = ("add", "cumsum", "index_put", "softmax", "scatter_add", "sort", "topk", "unfold", "where")


def test_operators_replay_exactly() -> None:
    from gpu_tests.graphs import opinfo

    assert {r.op: r.verdict for r in opinfo.sweep(OPERATORS)} == dict.fromkeys(OPERATORS, "exact")


@pytest.mark.slow
def test_no_operator_of_torch_is_silently_wrong() -> None:
    from gpu_tests.graphs import opinfo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = opinfo.sweep()
    assert [r for r in results if r.verdict == "wrong"] == []
    assert sum(r.verdict == "exact" for r in results) >= opinfo.MIN_EXACT

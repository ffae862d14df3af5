"""What every graph driver promises, on whichever of them this machine can run (a GPU adds real CUDA graphs)."""

from __future__ import annotations

import pytest
import torch

from gpu_tests.graphs import CaptureError, GraphDriver, SyncError
from gpu_tests.graphs.snippets import PROBES, Probe

pytestmark = pytest.mark.suite("graph-emulation", gpus=0, est="30s")


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name.replace(" ", "-"))
def test_every_driver_tells_the_same_story(driver: GraphDriver, probe: Probe) -> None:
    assert probe.run(driver) == probe.expected


def test_a_refused_capture_names_the_line(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    with pytest.raises(CaptureError) as caught:
        driver.capture(lambda: x.sum().item(), warmup=0)
    assert "test_graph_drivers.py:" in caught.value.site


def test_a_user_error_in_a_capture_is_not_a_capture_error(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    with pytest.raises(RuntimeError, match="mat1") as caught:
        driver.capture(lambda: x[None] @ x[None], warmup=0)
    assert not isinstance(caught.value, CaptureError)


def test_captures_of_one_program_have_no_difference(driver: GraphDriver) -> None:
    x = torch.ones(300, 5, device=driver.device)
    first, second = (driver.capture(lambda: torch.relu(x * 2).sum(0)) for _ in range(2))
    assert list(driver.diff(first, second)) == []


def test_another_launch_shape_is_a_difference(driver: GraphDriver) -> None:
    x = torch.ones(100_000, device=driver.device)
    first, second = (driver.capture(lambda n=n: x[:n] * 2) for n in (100, 100_000))
    assert driver.diff(first, second)


def test_another_op_is_a_difference(driver: GraphDriver) -> None:
    x = torch.ones(100, device=driver.device)
    assert driver.diff(driver.capture(lambda: x * 2), driver.capture(lambda: x.cos()))


def test_the_sync_guard_sees_a_host_read(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    with driver.sync_guard() as syncs:
        x.sum().item()
    assert len(syncs) == 1
    assert "test_graph_drivers.py:" in syncs[0].site


def test_the_sync_guard_sees_a_copy_from_pageable_memory(driver: GraphDriver) -> None:
    with driver.sync_guard() as syncs:
        torch.tensor([1, 2, 3], device=driver.device)
    assert syncs


def test_the_sync_guard_forbids_and_lets_go(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    with pytest.raises(SyncError), driver.sync_guard(forbid=True):
        x.sum().item()
    assert x.sum().item() == 3


def test_the_sync_guard_lets_device_work_pass(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    with driver.sync_guard(forbid=True):
        x.mul_(2).add_(torch.zeros_like(x))
    assert x.tolist() == [2, 2, 2]


def test_a_host_copy_is_a_copy(driver: GraphDriver) -> None:
    x = torch.ones(3, device=driver.device)
    host = driver.to_host(x)
    x.fill_(5)
    assert host.tolist() == [1, 1, 1]


def test_one_program_runs_for_many_contents(driver: GraphDriver) -> None:
    """Lengths live on the device: one graph serves any of them."""
    x = torch.arange(12.0, device=driver.device).reshape(3, 4)
    lengths = torch.ones(3, dtype=torch.int32, device=driver.device)
    columns = torch.arange(4, device=driver.device)
    graph = driver.capture(lambda: x.masked_fill(columns >= lengths[:, None], 0).sum(1))
    for values, expected in (([1, 2, 3], [0, 9, 27]), ([4, 0, 1], [6, 0, 8])):
        lengths.copy_(torch.tensor(values, dtype=torch.int32))
        graph.replay()
        assert graph.out.tolist() == expected

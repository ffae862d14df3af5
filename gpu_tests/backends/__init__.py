"""Attention backends under capture and replay: the protocol, the runner's double, our MLA and MHA, engine adapters."""

from __future__ import annotations

from gpu_tests.backends.protocol import Backend, BackendFactory, NotSupported, World


def default_backend(world: World) -> Backend:
    """Our own backend for the world's family."""
    from gpu_tests.backends.mha import MhaBackend
    from gpu_tests.backends.mla import MlaBackend

    return MlaBackend(world) if world.spec.family == "mla" else MhaBackend(world)


__all__ = ["Backend", "BackendFactory", "NotSupported", "World", "default_backend"]

"""Runs one shard of a plan on this host and writes its journal: start reading at `ci.runner.shard`.

Nothing is imported here, so that a small part (such as the GPU probe) starts fast in a process of its own.
"""

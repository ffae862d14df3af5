"""Runs one shard of a plan on this host and writes its journal."""

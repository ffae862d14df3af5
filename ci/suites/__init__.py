"""Suites: finding tests without importing them, their durations, and their shards."""

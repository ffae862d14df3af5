"""Seeded faults: what the contract must catch, each with the public bug that it re-creates. `registry` has them all."""

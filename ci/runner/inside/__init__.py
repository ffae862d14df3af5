"""Holds `nightcap_inside`, the only code of ours that lives in the processes of the tests.

This folder, and nothing else of ours, is put on their PYTHONPATH: a repository under test may well have a
package `ci` of its own, and its environment need not hold our dependencies.
"""

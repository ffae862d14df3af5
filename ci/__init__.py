"""Nightcap: the nightly GPU CI of an inference engine that cannot lie.

Data goes one way: spec -> plan -> journals -> verdicts. Every arrow is a plain value that can be written as JSON.
"""

__version__ = "0.1.0"

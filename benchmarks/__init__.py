"""Timings, never asserted: each module runs alone and writes JSON with the machine, the versions and the
date.
"""

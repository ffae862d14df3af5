"""Attention over several ranks: heads or requests split, and the all-reduce inside the captured graph.

`launch.run(Team("gloo", 2), cases)` starts one process a rank, runs each case on all of them and returns what was
wrong, by case.  `python -m gpu_tests.parallel --help` does the same for any world size.

    split      which heads, KV heads and weights a rank owns
    rank       what one rank does: capture, replay, compare, publish
    comms      process group, time limit of a collective, and the store through which ranks agree without collectives
    agreement  what ranks published, compared: pure functions
    cases      programs that must pass, and faulty ranks that must be caught
    report     findings, and what a hang means once all ranks have told their side
    launch     the parent: starts ranks, waits with a limit, ends all of them
"""

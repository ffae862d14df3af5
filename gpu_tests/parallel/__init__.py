"""Attention over several ranks: heads or requests split, and the all-reduce inside the captured graph.

`python -m gpu_tests.parallel --world-size N` runs the cases on any number of ranks, `gpu_tests/test_attention_tp.py`
those that this machine has.

    cases      programs that must pass, and faulty ranks that must be named
    split      which heads, KV heads and weights a rank owns
    session    one case on one rank: capture, replay, compare, publish
    comms      collectives with a time limit; agreement through a store, without collectives
    agreement  what the ranks published, compared: pure functions
    report     findings, and what a hang means once all ranks have told their side: pure functions
    rank       the process of one rank
    launch     its parent: starts ranks, waits with a limit, ends all of them
    suite      which ranks run on this machine, and when a case is as it should be
"""

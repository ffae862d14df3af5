"""Attention under CUDA graphs: reference kernels, graph drivers, backends, the contract and the faults it catches."""

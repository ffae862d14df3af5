"""Attention for reference: `oracle` to be trusted (fp64), `paged` caches, `decode` kernels to be tested."""

"""How a launch divides its work on the GPU it runs on, and the second half that puts the parts together: what the
Triton and the Gluon kernel share on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_tests.reference.balanced import combine_runs
from gpu_tests.reference.combine import combine, launch_options
from gpu_tests.reference.splits import choose_runs, choose_splits, count_parts, partial_bytes


@dataclass(frozen=True)
class Division:
    """The work of a launch over `batch_size` requests, in `num_splits` splits of each request or, `balanced`, in
    as many runs over all of them.
    """

    batch_size: int
    heads: int
    head_dim_v: int
    max_q_len: int
    max_seq_len: int
    balanced: bool
    num_splits: int

    @property
    def direct(self) -> bool:
        """Whether the first half writes the output itself."""
        return self.num_splits == 1 and not self.balanced

    @property
    def grid(self) -> tuple[int, int]:
        """Programs along the axes of splits and of requests."""
        return self.num_splits, 1 if self.balanced else self.batch_size

    @property
    def num_parts(self) -> int:
        return count_parts(self.batch_size, self.max_q_len * self.heads, self.num_splits, self.balanced)

    def needed_bytes(self) -> int:
        """Bytes of workspace."""
        return partial_bytes(self.num_parts, self.head_dim_v)

    def partial_results(self, workspace: Tensor) -> tuple[Tensor, Tensor]:
        """The partial outputs [num_parts * head_dim_v] and LSEs [num_parts], fp32, in a workspace of at least
        `needed_bytes()`.
        """
        scratch = workspace.view(-1).view(torch.uint8)[: self.needed_bytes()].view(torch.float32)
        # Outputs first: they are stored as vectors, which asks for alignment.
        return scratch[: self.num_parts * self.head_dim_v], scratch[self.num_parts * self.head_dim_v :]

    def options(self, device: torch.device) -> dict[str, object]:
        """Options of both launches."""
        return launch_options(device)

    def combine(
        self,
        out: Tensor,
        lse: Tensor,
        parts: tuple[Tensor, Tensor],
        seq_lens: Tensor,
        cum_seq_lens_q: Tensor | None,
        sinks: Tensor | None,
        scale: float,
        scale_tensor: Tensor | None,
        *,
        keys: int,
        strict: bool,
    ) -> None:
        """The second half, if there is one, behind a first half with blocks of `keys` keys."""
        arguments = (out, lse, *parts, seq_lens, cum_seq_lens_q, sinks, scale, scale_tensor)
        common = {"max_q_len": self.max_q_len, "strict": strict, "options": self.options(out.device)}
        if self.balanced:
            combine_runs(*arguments, runs=self.num_splits, keys=keys, max_seq_len=self.max_seq_len, **common)
        elif not self.direct:
            combine(*arguments, num_splits=self.num_splits, **common)


def divide(out: Tensor, k: Tensor, batch_size: int, max_q_len: int, max_seq_len: int, balanced: bool) -> Division:
    """The division of a launch that writes `out` [num_tokens, H, Dv] over a cache `k` [P, page, Hkv, D]."""
    _, heads, head_dim_v = out.shape
    num_splits = splits_for(batch_size, heads, k.shape[2], head_dim_v, max_q_len, max_seq_len, balanced, out.device)
    return Division(batch_size, heads, head_dim_v, max_q_len, max_seq_len, balanced, num_splits)


def splits_for(
    batch_size: int,
    heads: int,
    kv_heads: int,
    head_dim_v: int,
    max_q_len: int,
    max_seq_len: int,
    balanced: bool,
    device: torch.device,
) -> int:
    """The number of splits of a request, or of runs over the batch, that suits the device."""
    on_gpu = device.type == "cuda"
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 4
    if balanced:
        return choose_runs(heads, kv_heads, head_dim_v, max_q_len, num_sms)
    return choose_splits(batch_size, heads, kv_heads, head_dim_v, max_q_len, max_seq_len, num_sms)

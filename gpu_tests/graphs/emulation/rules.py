"""What CUDA refuses to capture, as data with reasons.

A CPU build of torch runs the CPU kernels, which do not tell what their CUDA twins would do; these tables do.
They were made by running the snippets of `gpu_tests.graphs.snippets` on both, and are checked by the same
table. Names are aten packets (`aten.svd`), or Python methods where the CPU never reaches the dispatcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

# Methods that read the tensor's data on the host.  On the CPU they bypass the dispatcher, so only a
# function mode sees them.  `.item()`, `bool()` and `int()` are not here: they reach the dispatcher as
# `_local_scalar_dense`.
HOST_READ_METHODS: dict[str, str] = {
    "cpu": "copies device memory to pageable host memory and waits for it",
    "numpy": "reads device memory on the host",
    "__array__": "reads device memory on the host",
    "__dlpack__": "hands device memory to a host library",
    "tolist": "reads device memory on the host",
    "__repr__": "printing reads device memory on the host",
    "__format__": "formatting reads device memory on the host",
    "__deepcopy__": "copies the storage outside the graph",
    "__reduce_ex__": "pickling reads device memory on the host",
}

# Functions that build a tensor from sizes or Python data; without `device=` the result is in host memory.
FACTORIES = frozenset(
    {
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "empty_permuted",
        "empty_strided",
        "eye",
        "from_numpy",
        "frombuffer",
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
        "scalar_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
        "normal",
        "blackman_window",
        "hann_window",
        "hamming_window",
        "bartlett_window",
        "kaiser_window",
    }
)
# Of those, the ones that read Python data on the host and would copy it to the device.
FROM_PYTHON_DATA = frozenset({"tensor", "as_tensor", "asarray"})

# Their memory is whatever was there before.
UNINITIALISED = frozenset(
    {
        "aten.empty",
        "aten.empty_like",
        "aten.empty_strided",
        "aten.empty_permuted",
        "aten.new_empty",
        "aten.new_empty_strided",
    }
)


def _without_output_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("output_size") is None


def _without_range(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    low, high = (kwargs.get(name, args[i] if len(args) > i else 0) for i, name in ((2, "min"), (3, "max")))
    return bool(low == high)


def _sorts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`torch.isin` compares with few test elements directly and sorts many, by this rule of ATen."""
    elements, tests = args[0], args[1]
    if not isinstance(tests, torch.Tensor):
        return False
    count = elements.numel() if isinstance(elements, torch.Tensor) else 1
    return bool(tests.numel() >= 10 * count**0.145)


def _differs_from_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`torch.equal` short-cuts, before any read, on the same tensor and on unequal shapes."""
    a, b = args
    return a.shape == b.shape and not (a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.dtype == b.dtype)


Condition = Callable[[tuple[Any, ...], dict[str, Any]], bool]
SHAPE_REASON = "the shape of its result depends on data, so the host must read it"
VALUE_REASON = "its result is a Python value read from device memory"
_SOLVER = "its CUDA implementation checks an error flag on the host"
_ITERATES = "its CUDA implementation reads data on the host while it runs"
_COPIES = "its CUDA implementation copies pageable host memory to the device"

# packet -> (reason, condition on the arguments or None for always)
HOST_READ_OPS: dict[str, tuple[str, Condition | None]] = {
    "aten._local_scalar_dense": (VALUE_REASON, None),
    "aten.item": (VALUE_REASON, None),
    "aten.is_nonzero": (VALUE_REASON, None),
    "aten.equal": (VALUE_REASON, _differs_from_itself),
    "aten.allclose": (VALUE_REASON, None),
    "aten.nonzero": (SHAPE_REASON, None),
    "aten.masked_select": (SHAPE_REASON, None),
    "aten._unique": (SHAPE_REASON, None),
    "aten._unique2": (SHAPE_REASON, None),
    "aten.unique_dim": (SHAPE_REASON, None),
    "aten.unique_consecutive": (SHAPE_REASON, None),
    "aten.bincount": (SHAPE_REASON, None),
    "aten.isin": ("it sorts its operands and reads how many are unique", _sorts),
    "aten.repeat_interleave": (SHAPE_REASON, _without_output_size),
    "aten.histc": (
        "without a range it reads the data's own minimum and maximum on the host",
        _without_range,
    ),
}

# overload -> positions of 0-dim operands that it reads with `.item()` inside, out of the recorder's sight.
ITEM_INSIDE: dict[str, tuple[int, ...]] = {
    "aten.masked_fill.Tensor": (2,),
    "aten.masked_fill_.Tensor": (2,),
    "aten.index_fill.int_Tensor": (3,),
    "aten.index_fill_.int_Tensor": (3,),
    "aten.linspace.Tensor_Tensor": (0, 1),
    "aten.linspace.Tensor_Scalar": (0,),
    "aten.linspace.Scalar_Tensor": (1,),
    "aten.logspace.Tensor_Tensor": (0, 1),
    "aten.logspace.Tensor_Scalar": (0,),
    "aten.logspace.Scalar_Tensor": (1,),
}
ITEM_REASON = "it reads its 0-dim operand on the host; a Python number or `torch.where` does not"

# packet -> reason: the CPU kernel shows nothing, the CUDA one cannot be captured.
UNCAPTURABLE_OPS: dict[str, str] = {
    "aten._linalg_svd": _SOLVER,
    "aten._linalg_eigh": _SOLVER,
    "aten.linalg_eig": _SOLVER,
    "aten.linalg_eigvals": _SOLVER,
    "aten._linalg_eigvals": _SOLVER,
    "aten.linalg_pinv": _SOLVER,
    "aten.linalg_matrix_exp": _COPIES,
    "aten.cholesky": _SOLVER,
    "aten.linalg_cholesky_ex": _SOLVER,
    "aten.linalg_inv_ex": _SOLVER,
    "aten._linalg_solve_ex": _SOLVER,
    "aten.linalg_lstsq": _SOLVER,
    "aten._linalg_check_errors": _SOLVER,
    "aten._ctc_loss": _COPIES,
    "aten.segment_reduce": _ITERATES,
}

# A 0-dim host tensor as an operand of a device op: its value is read at capture and frozen.  Pointwise ops allow
# it, and these; not so the ops that copy it to the device, or that want all operands on one device.
FROZEN_SCALAR_OPS = frozenset(
    {
        "aten.fill_",
        "aten.fill",
        "aten.masked_fill",
        "aten.masked_fill_",
        "aten.index_fill",
        "aten.index_fill_",
    }
)
DEMANDS_ONE_DEVICE = frozenset({"aten.clamp", "aten.clamp_"})
COPIES_HOST_SCALAR = frozenset({"aten.where", "aten.index_put", "aten.index_put_", "aten.copy_", "aten.copy"})

# Ops that write operands which their schema does not declare: argument positions.
HIDDEN_WRITES: dict[str, tuple[int, ...]] = {
    "aten.native_batch_norm": (3, 4),
    "aten.cudnn_batch_norm": (3, 4),
    "aten._batch_norm_with_update": (3, 4),
}

# How CPU kernels complain about data; CUDA kernels do so with a device-side assert, when they run.
DATA_ERRORS = re.compile(
    r"out of (range|bounds|DATA bounds)|probability tensor|multinomial distribution|p_in >= 0|ones in mask"
)


def packet_name(func: torch._ops.OpOverload) -> str:
    return str(func.overloadpacket)


def allows_host_scalar(func: torch._ops.OpOverload) -> bool:
    name = packet_name(func)
    if name in COPIES_HOST_SCALAR or name in DEMANDS_ONE_DEVICE:
        return False
    return name in FROZEN_SCALAR_OPS or torch.Tag.pointwise in func.tags

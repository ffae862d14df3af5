"""The oracle is itself tested: hand-worked cases, a second formula written otherwise, and properties.

If this file is wrong, every other verdict of the attention suites is.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import acceptance, oracle
from gpu_tests.reference.oracle import LOG2E, Attention, attention
from gpu_tests.reference.paged import empty_kv, empty_mla, shuffled_page_table

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="20s")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(got: Attention, expected: Attention) -> None:
    torch.testing.assert_close(got.out, expected.out, rtol=0, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(got.lse, expected.lse, rtol=0, atol=1e-12, equal_nan=True)


def streaming(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window_left: int = -1,
    causal: bool = True,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
    mask: Tensor | None = None,
) -> Attention:
    """The second formula: scalar Python, one key after the other, a running maximum, the sink as a first
    logit.
    """
    (num_queries, num_heads, _), (num_keys, num_kv_heads, _) = q.shape, k.shape
    out = torch.zeros(num_queries, num_heads, v.shape[2], dtype=torch.float64)
    lse = torch.zeros(num_queries, num_heads, dtype=torch.float64)
    for t in range(num_queries):
        last = num_keys - num_queries + t if causal else num_keys - 1
        first = 0 if window_left < 0 else max(0, num_keys - num_queries + t - window_left)
        for h in range(num_heads):
            top, total, total_with_sink = -math.inf, 0.0, 0.0
            if sinks is not None and sinks[h] > -math.inf:
                top, total_with_sink = float(sinks[h]), 1.0
            acc = [0.0] * v.shape[2]
            for s in range(first, last + 1):
                if mask is not None and not mask[t, s]:
                    continue
                kv_head = h * num_kv_heads // num_heads
                query, key = q[t, h].tolist(), k[s, kv_head].tolist()
                score = scale * math.fsum(a * b for a, b in zip(query, key, strict=True))
                score = softcap * math.tanh(score / softcap) if softcap else score
                new_top = max(top, score)
                shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
                total, total_with_sink = total * shrink + weight, total_with_sink * shrink + weight
                acc = [a * shrink + weight * x for a, x in zip(acc, v[s, kv_head].tolist(), strict=True)]
                top = new_top
            lse[t, h] = (top + math.log(total)) * LOG2E if total > 0 else -math.inf
            for d in range(v.shape[2]):
                out[t, h, d] = acc[d] / total_with_sink if total > 0 else 0.0
    return Attention(out, lse)


# Tiny cases worked by hand.


def test_two_keys_by_hand() -> None:
    # Scores ln 3 and 0: weights 3/4 and 1/4, sum of exponentials 4.
    q, k = torch.tensor([[[math.log(3.0)]]]), torch.tensor([[[1.0]], [[0.0]]])
    v = torch.tensor([[[8.0]], [[4.0]]])
    out, lse = attention(q.double(), k, v, scale=1.0)
    torch.testing.assert_close(out.item(), 7.0, rtol=0, atol=1e-6)
    torch.testing.assert_close(lse.item(), 2.0, rtol=0, atol=1e-6)
    natural = attention(q.double(), k, v, scale=1.0, lse_base="e").lse
    torch.testing.assert_close(natural.item(), math.log(4.0), rtol=0, atol=1e-6)


def test_a_sink_of_the_weight_of_all_keys_halves_the_output_and_leaves_the_lse() -> None:
    q, k, v = torch.zeros(1, 1, 1), torch.zeros(4, 1, 1), torch.full((4, 1, 1), 6.0)
    out, lse = attention(q, k, v, scale=1.0, sinks=torch.tensor([math.log(4.0)]))
    assert out.item() == pytest.approx(3.0, abs=1e-6)
    assert lse.item() == pytest.approx(2.0, abs=1e-6)


def test_causal_is_bottom_right_by_hand() -> None:
    # 2 queries on 4 keys: the first sees keys 0..2 (mean 1), the second 0..3 (mean 1.5).
    q, k, v = torch.zeros(2, 1, 1), torch.zeros(4, 1, 1), torch.arange(4.0).view(4, 1, 1)
    assert attention(q, k, v, scale=1.0).out.flatten().tolist() == pytest.approx([1.0, 1.5])


@pytest.mark.parametrize(("window_left", "expected"), [(-1, 2.0), (0, 4.0), (1, 3.5), (4, 2.0), (5, 2.0), (99, 2.0)])
def test_window_counts_the_keys_left_of_the_own_key(window_left: int, expected: float) -> None:
    q, k, v = torch.zeros(1, 1, 1), torch.zeros(5, 1, 1), torch.arange(5.0).view(5, 1, 1)
    assert attention(q, k, v, scale=1.0, window_left=window_left).out.item() == pytest.approx(expected)


def test_a_row_with_one_key_returns_its_value() -> None:
    v = normal(7, 2, 3)
    out, lse = attention(normal(1, 4, 5), normal(7, 2, 5, seed=1), v, scale=0.3, window_left=0)
    torch.testing.assert_close(out[0], v[6].repeat_interleave(2, dim=0))
    assert torch.isfinite(lse).all()


def test_a_draft_tree_by_hand() -> None:
    # Tree 0 -> (1, 2), 2 -> 3, behind a prefix of 2 tokens: token 3 sees the prefix, 0, 2 and itself.
    mask = oracle.tree_mask([-1, 0, 0, 2], num_keys=6)
    assert mask.int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]
    v = torch.arange(6.0).view(6, 1, 1)
    out = attention(torch.zeros(4, 1, 1), torch.zeros(6, 1, 1), v, scale=1.0, mask=mask).out.flatten().tolist()
    assert out == pytest.approx([1.0, 1.5, 7 / 4, 12 / 5])


def test_rows_without_keys_are_zero_with_minus_infinite_lse() -> None:
    # 3 queries on 1 key: the first two stand before it.
    out, lse = attention(normal(3, 2, 4), normal(1, 2, 4), normal(1, 2, 4), scale=1.0, sinks=torch.zeros(2))
    assert torch.isneginf(lse[:2]).all()
    assert (out[:2] == 0).all()
    assert torch.isfinite(lse[2]).all()
    empty = attention(normal(1, 2, 4), normal(0, 2, 4), normal(0, 2, 4), scale=1.0)
    assert torch.isneginf(empty.lse).all()
    assert (empty.out == 0).all()


# The second formula.

VARIANTS = {
    "mha": {"heads": 2, "kv_heads": 2},
    "gqa": {"heads": 6, "kv_heads": 2},
    "mqa": {"heads": 3, "kv_heads": 1},
    "one query": {"queries": 1},
    "one key": {"queries": 1, "keys": 1},
    "more queries than keys": {"queries": 4, "keys": 2},
    "bidirectional": {"causal": False},
    "window 0": {"window_left": 0},
    "window 3": {"window_left": 3},
    "window len-1": {"window_left": 10},
    "window len": {"window_left": 11},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": torch.tensor([0.0, -math.inf, 30.0, -2.0])},
    "sinks and window": {"sinks": torch.tensor([1.0, -math.inf, 30.0, -2.0]), "window_left": 2},
    "far below -5e4": {"scale": 1e5},
    "tree": {"queries": 4, "mask": oracle.tree_mask([-1, 0, 0, 2], num_keys=11)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_oracle_equals_the_streaming_formula(name: str) -> None:
    options = dict(VARIANTS[name])
    queries, keys = options.pop("queries", 3), options.pop("keys", 11)
    heads, kv_heads = options.pop("heads", 4), options.pop("kv_heads", 2)
    scale = options.pop("scale", 0.4)
    q, k = normal(queries, heads, 5), normal(keys, kv_heads, 5, seed=1)
    v = normal(keys, kv_heads, 3, seed=2)
    got = attention(q, k, v, scale=scale, **options)
    expected = streaming(q, k, v, scale=scale, **options)
    torch.testing.assert_close(got.out, expected.out, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(got.lse, expected.lse, rtol=1e-11, atol=1e-12)


# Properties.


def test_head_h_reads_kv_head_h_div_group() -> None:
    # Every KV head carries its number: h % Hkv in place of h // group would be visible in every row.
    kv_heads, group = 3, 4
    v = torch.arange(kv_heads).double().view(1, kv_heads, 1).expand(5, -1, 2)
    out = attention(normal(2, kv_heads * group, 4), normal(5, kv_heads, 4), v, scale=1.0).out
    assert out[0, :, 0].round().tolist() == [h // group for h in range(kv_heads * group)]


def test_hidden_keys_may_hold_nan() -> None:
    q, k, v = normal(2, 2, 4), normal(6, 1, 4, seed=1), normal(6, 1, 3, seed=2)
    expected = attention(q[:1], k[:5], v[:5], scale=0.5)
    k[5], v[5] = math.nan, math.nan  # seen by the second query alone
    got = attention(q, k, v, scale=0.5)
    assert_same(Attention(got.out[:1], got.lse[:1]), expected)
    assert got.out[1].isnan().all()


@pytest.mark.parametrize("cuts", [[5], [0], [12], [1, 2, 3], [4, 4, 9], [0, 12]])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.3, -math.inf])])
@pytest.mark.parametrize("base", ["2", "e"])
def test_merging_any_split_of_the_keys_gives_the_whole(cuts: list[int], sinks: Tensor | None, base: str) -> None:
    q, k, v = normal(1, 2, 4), normal(12, 1, 4, seed=1), normal(12, 1, 3, seed=2)
    bounds = [0, *cuts, 12]
    parts = [attention(q, k[a:b], v[a:b], scale=0.5, lse_base=base) for a, b in pairwise(bounds)]
    merged = oracle.merge(parts, sinks=sinks, lse_base=base)
    assert_same(merged, attention(q, k, v, scale=0.5, sinks=sinks, lse_base=base))


def test_merging_empty_parts() -> None:
    empty = attention(normal(1, 2, 4), normal(0, 1, 4), normal(0, 1, 3), scale=1.0)
    unwritten = Attention(torch.full_like(empty.out, math.nan), empty.lse)
    live = attention(normal(1, 2, 4), normal(3, 1, 4), normal(3, 1, 3), scale=1.0)
    assert_same(oracle.merge([empty, unwritten]), empty)
    assert_same(oracle.merge([live, unwritten]), live)
    assert_same(oracle.merge([unwritten, live]), live)


def test_a_merge_in_the_wrong_base_is_visible() -> None:
    q, k, v = normal(1, 2, 4), normal(12, 1, 4, seed=1), normal(12, 1, 3, seed=2)
    parts = [attention(q, k[a:b], v[a:b], scale=1.0, lse_base="2") for a, b in [(0, 3), (3, 12)]]
    wrong = oracle.merge(parts, lse_base="e")
    assert (wrong.out - attention(q, k, v, scale=1.0).out).abs().max() > 1e-2


def test_lse_bases_differ_by_log2_e() -> None:
    q, k, v = normal(2, 2, 4), normal(9, 2, 4, seed=1), normal(9, 2, 3, seed=2)
    base2, natural = (attention(q, k, v, scale=1.0, lse_base=base).lse for base in ("2", "e"))
    torch.testing.assert_close(base2, natural * 1.4426950408889634)


@pytest.mark.parametrize("big", [1e4, math.inf])
def test_an_overwhelming_sink_leaves_nothing(big: float) -> None:
    out = attention(normal(1, 2, 4), normal(5, 2, 4), normal(5, 2, 3), scale=1.0, sinks=torch.full((2,), big)).out
    assert (out == 0).all()


def test_mla_absorbed_and_expanded_agree() -> None:
    tokens, keys, heads, nope, rank, rope_dim, v_dim = 3, 9, 4, 16, 512, 64, 16
    latent, rope = normal(keys, rank), normal(keys, rope_dim, seed=1)
    q_nope, q_rope = normal(tokens, heads, nope, seed=2), normal(tokens, heads, rope_dim, seed=3)
    w_uk, w_uv = normal(heads, nope, rank, seed=4), normal(heads, rank, v_dim, seed=5)
    scale = 0.1 / math.sqrt(nope + rope_dim)
    q_latent = torch.einsum("thn,hnl->thl", q_nope, w_uk)
    absorbed = oracle.mla_absorbed(q_latent, q_rope, latent, rope, scale=scale, window_left=5)
    expanded = oracle.mla_expanded(q_nope, q_rope, latent, rope, w_uk, w_uv, scale=scale, window_left=5)
    torch.testing.assert_close(torch.einsum("thl,hlv->thv", absorbed.out, w_uv), expanded.out)
    torch.testing.assert_close(absorbed.lse, expanded.lse)
    without_rope = attention(q_latent, latent[:, None], latent[:, None], scale=scale, window_left=5)
    assert (without_rope.lse - absorbed.lse).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"q": normal(1, 3, 4)}, "shapes do not fit"),
        ({"k": normal(5, 2, 8)}, "shapes do not fit"),
        ({"window_left": -2}, "window_left"),
        ({"mask": torch.ones(2, 2, dtype=torch.bool)}, "mask must be bool \\[1, 5\\]"),
    ],
)
def test_misfits_are_refused(fault: dict[str, object], message: str) -> None:
    good = {"q": normal(1, 4, 4), "k": normal(5, 2, 4), "v": normal(5, 2, 4), "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        attention(**(good | fault))


# Paged caches.

LAYOUTS = [(layout, storage) for layout in ("NHD", "HND") for storage in ("separate", "page", "token")]


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize(("layout", "storage"), LAYOUTS)
def test_written_tokens_come_back_from_any_layout(page_size: int, layout: str, storage: str) -> None:
    lengths = [0, 1, page_size, 2 * page_size + 1]
    table = shuffled_page_table(lengths, page_size, num_pages=9, seed=3)
    cache = empty_kv(9, page_size, 2, 4, layout=layout, storage=storage, page_gap=6)
    written = [(normal(n, 2, 4, seed=n).float(), normal(n, 2, 4, seed=n + 50).float()) for n in lengths]
    for row, (k, v) in enumerate(written):
        cache.write(cache.slots(table[row], len(k)), k, v)
    for row, (k, v) in enumerate(written):
        got_k, got_v = cache.gather(table[row], len(k))
        assert torch.equal(got_k, k.double())
        assert torch.equal(got_v, v.double())
    live = sum(lengths) * 2 * 4
    assert int(cache.k.isfinite().sum()) == live, "a write outside of the slots"
    assert int(cache.v.isfinite().sum()) == live


@pytest.mark.parametrize(("layout", "storage"), LAYOUTS)
def test_kernels_are_shown_the_same_memory_in_their_layout(layout: str, storage: str) -> None:
    cache = empty_kv(3, 5, 2, 4, layout=layout, storage=storage, page_gap=1)
    cache.write(torch.tensor([7]), torch.full((1, 2, 4), 1.0), torch.full((1, 2, 4), 2.0))
    shown = cache.kv_cache()
    k, v = shown if isinstance(shown, tuple) else shown.unbind(1)
    assert list(k.shape) == ([3, 5, 2, 4] if layout == "NHD" else [3, 2, 5, 4])
    at = (1, 2) if layout == "NHD" else (1, slice(None), 2)
    assert (k[at] == 1).all()
    assert (v[at] == 2).all()
    assert k.stride(-1) == 1


def test_mla_values_are_the_latent_part_of_the_keys() -> None:
    cache = empty_mla(3, 4, kv_lora_rank=8, qk_rope_head_dim=2)
    cache.write(torch.tensor([5]), normal(1, 1, 10).float())
    assert torch.equal(cache.v[1, 1], cache.k[1, 1, :, :8])
    shown = cache.kv_cache()
    assert isinstance(shown, Tensor)
    assert list(shown.shape) == [3, 4, 10]


def test_fp8_caches_give_the_oracle_what_the_kernel_reads() -> None:
    cache = empty_kv(2, 4, 1, 8, dtype=torch.float8_e4m3fn, k_scale=0.25, v_scale=2.0)
    k, v = normal(3, 1, 8).float(), normal(3, 1, 8, seed=1).float()
    cache.write(torch.arange(3), k, v)
    got_k, got_v = cache.gather([0], 3)
    assert torch.equal(got_k, (k / 0.25).to(torch.float8_e4m3fn).double() * 0.25)
    assert torch.equal(got_v, (v / 2.0).to(torch.float8_e4m3fn).double() * 2.0)
    assert (got_k != k.double()).any(), "the case shows no rounding"


def test_the_order_of_pages_in_memory_does_not_matter() -> None:
    k, v, q = normal(10, 1, 4).float(), normal(10, 1, 4, seed=1).float(), normal(1, 2, 4, seed=2)
    results = []
    for seed in range(3):
        cache = empty_kv(8, 3, 1, 4)
        pages = shuffled_page_table([10], 3, 8, seed=seed)[0]
        cache.write(cache.slots(pages, 10), k, v)
        results.append(attention(q, *cache.gather(pages, 10), scale=0.5))
    assert torch.equal(results[0].out, results[1].out)
    assert torch.equal(results[0].out, results[2].out)


def test_page_tables_are_shuffled_disjoint_and_padded() -> None:
    table = shuffled_page_table([5, 0, 8], 2, 40, width=6, seed=1, tail=-1)
    assert (table >= 0).sum(dim=1).tolist() == [3, 0, 4]
    ids = table[table >= 0].tolist()
    assert len(set(ids)) == 7
    assert ids != sorted(ids)
    with pytest.raises(ValueError, match="7 pages are needed, 6"):
        shuffled_page_table([5, 0, 8], 2, 6)


# Acceptance: what may pass as a kernel's output.


def accepted_case(dtype: torch.dtype, columns: int = 32, length: int = 8192) -> dict[str, Tensor]:
    """One query token over a long sequence whose first and last keys carry weight in the first `columns` of
    32 columns, and its references.
    """
    q, k = normal(1, 2, 64).to(dtype), normal(length, 1, 64, seed=1).to(dtype)
    v = normal(length, 1, 32, seed=2)
    v[..., :columns] = acceptance.emphasise(v[..., :columns], [0, length - 1])
    v = v.to(dtype)
    ref = attention(q, k, v, scale=1 / 8).out
    return {
        "q": q,
        "k": k,
        "v": v,
        "ref": ref,
        "lowp": acceptance.low_precision(q, k, v, scale=1 / 8),
        "rounding": acceptance.weight_rounding(q, k, v, scale=1 / 8),
    }


def failing(case: dict[str, Tensor], out: Tensor, dtype: torch.dtype) -> set[tuple[int, int]]:
    """Rows (token, head) of `out` that are not accepted although `weight_rounding` is allowed for."""
    errors = acceptance.row_errors(out.to(dtype), case["ref"], case["lowp"], dtype, case["rounding"])
    return {(row.token, row.head) for row in errors}


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_rounded_once_is_accepted(dtype: torch.dtype) -> None:
    case = accepted_case(dtype)
    assert acceptance.row_errors(case["ref"].to(dtype), case["ref"], case["lowp"], dtype) == []
    assert acceptance.row_errors(case["lowp"], case["ref"], case["lowp"], dtype) == []


BOTH_HEADS = {(0, 0), (0, 1)}
COLUMNS = pytest.mark.parametrize("columns", [32, 1], ids=["all columns emphasised", "one column"])


@COLUMNS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [slice(0, -1), slice(1, None)], ids=["last key lost", "first key lost"])
def test_one_key_of_8192_lost_is_never_accepted(dtype: torch.dtype, kept: slice, columns: int) -> None:
    case = accepted_case(dtype, columns=columns)
    wrong = attention(case["q"], case["k"][kept], case["v"][kept], scale=1 / 8).out
    assert failing(case, wrong, dtype) == BOTH_HEADS


@COLUMNS
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_of_8192_counted_twice_is_never_accepted(dtype: torch.dtype, columns: int) -> None:
    case = accepted_case(dtype, columns=columns)
    k, v = (torch.cat([case[side], case[side][-1:]]) for side in ("k", "v"))
    assert failing(case, attention(case["q"], k, v, scale=1 / 8).out, dtype) == BOTH_HEADS


def test_weights_rounded_relative_to_another_maximum_are_accepted() -> None:
    # One column carries the row: `low_precision` is a sample of one there, and small by luck in some of 4000 rows.
    q, k = normal(1, 4000, 8).bfloat16(), normal(128, 1, 8, seed=1).bfloat16()
    v = acceptance.emphasise(normal(128, 1, 1, seed=2), [0, 127]).bfloat16()
    scores = torch.einsum("thd,sd->ths", q.double(), k[:, 0].double())
    weights = torch.exp(scores - scores[..., :64].amax(-1, keepdim=True))
    out = (weights.bfloat16().double() @ v[:, 0].double()) / weights.sum(-1, keepdim=True)
    ref, lowp = attention(q, k, v, scale=1.0).out, acceptance.low_precision(q, k, v, scale=1.0)
    rounding = acceptance.weight_rounding(q, k, v, scale=1.0)
    assert acceptance.row_errors(out.bfloat16(), ref, lowp, torch.bfloat16) != []
    assert acceptance.row_errors(out.bfloat16(), ref, lowp, torch.bfloat16, rounding) == []


def test_one_lost_key_of_8192_shows_in_the_lse_without_emphasis() -> None:
    q, k = torch.zeros(1, 2, 64), normal(8192, 1, 64)
    right, wrong = (attention(q, side, side, scale=1 / 8).lse for side in (k, k[1:]))
    assert acceptance.lse_errors(right.float(), right) == []
    assert len(acceptance.lse_errors(wrong.float(), right)) == 2


def test_one_bad_row_among_large_ones_is_named() -> None:
    ref = normal(4, 3, 16) * 100
    ref[2, 1] *= 1e-4
    out, lowp = ref.bfloat16(), ref.bfloat16()
    out[2, 1, 5] += 0.001
    (error, _) = acceptance.row_errors(out, ref, lowp, torch.bfloat16)
    assert (error.token, error.head) == (2, 1)
    assert str(error).startswith("token 2, head 1: ")


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_anomalies_must_stand_where_the_oracle_has_them(poison: float) -> None:
    ref = normal(2, 2, 4)
    out = ref.clone()
    out[1, 0, 3] = poison
    assert [row[:2] for row in acceptance.row_errors(out, ref, ref, torch.float64)][:1] == [(1, 0)]
    assert acceptance.row_errors(out, out, ref, torch.float64) == []

"""Stand-ins for the two operators of attention without padding, which run on a GPU only.

Written in plain torch with the operators' own arguments: they show that rows are packed, bounded,
masked and scaled as documented, not that the operators compute them right.
"""

import sys
from types import ModuleType

import pytest
import torch


def attend_rows(queries, keys, values, starts_q, starts_k, max_q, max_k, scale, causal):
    """softmax(scale q k^T) v by loops over rows and positions; causal aligns the rows' ends."""
    assert starts_q.dtype == starts_k.dtype == torch.int32
    starts_q, starts_k = starts_q.tolist(), starts_k.tolist()
    assert starts_q[0] == starts_k[0] == 0 and len(starts_q) == len(starts_k)
    assert (starts_q[-1], starts_k[-1]) == (len(queries), len(keys)) and len(keys) == len(values)
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for row in range(len(starts_q) - 1):
        first, last = starts_k[row], starts_k[row + 1]
        length = starts_q[row + 1] - starts_q[row]
        assert 0 < length <= max_q and 0 < last - first <= max_k
        for position in range(length):
            end = last - (length - 1 - position) if causal else last
            query = queries[starts_q[row] + position].double()
            scores = torch.einsum("ak,sak->as", query, keys[first:end].double()) * scale
            rows.append(torch.einsum("as,sak->ak", scores.softmax(-1), values[first:end].double()))
    return torch.stack(rows).to(queries.dtype)


def flash_by_loops(calls):
    """A stand-in for flash_attn.flash_attn_varlen_func."""

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        calls.append({"dropout": dropout_p, "causal": causal, "keys": len(k), "type": q.dtype})
        bounds = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return attend_rows(q, k, v, *bounds, softmax_scale, causal)

    return flash_attn_varlen_func


def varlen_by_loops(calls):
    """A stand-in for torch.nn.attention.varlen.varlen_attn."""

    def varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        return_aux=None,
        scale=None,
        window_size=(-1, -1),
        enable_gqa=False,
        seqused_k=None,
        block_table=None,
        num_splits=None,
    ):
        assert window_size in ((-1, -1), (-1, 0))
        causal = window_size == (-1, 0)
        calls.append({"dropout": 0.0, "causal": causal, "keys": len(key), "type": query.dtype})
        return attend_rows(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, causal)

    return varlen_attn


def stand_in(monkeypatch: pytest.MonkeyPatch, backend: str) -> list[dict]:
    """Importing the backend's operator gives its stand-in; returns the list of its calls."""
    calls: list[dict] = []
    if backend == "varlen":
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_loops(calls))
        return calls
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_by_loops(calls)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return calls

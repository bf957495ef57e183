"""The report's tables as text: rows of a summary in, one dictionary of cells a row out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.page import number, percent, share_text
from loadtest.sparsity.records import DENSE

Row = Mapping[str, Any]
Cells = list[dict[str, str]]

_KL_DIGITS = 4


def policy_rows(rows: Iterable[Row]) -> Cells:
    """Policies x budgets: closeness to dense, needles after pruning, and what is read."""
    ordered = sorted(rows, key=lambda row: (row["budget"], row.get("kl", float("inf"))))
    return [
        {
            "policy": row["arm"],
            "tokens": _budget(row),
            **_closeness(row),
            "median block's KL": number(row.get("kl_median"), digits=_KL_DIGITS),
            "recall": percent(row.get("recall")),
            "recall p10": percent(row.get("recall_p10")),
            "needles after pruning": _needles(row["needle"], "of_dense"),
            "needles, whole prompt": _needles(row["needle_whole"], "of_dense"),
            "times fewer reads": _times(row.get("reduction")),
            "off the formula": _signed(row.get("formula_deviation")),
            "recent share": percent(row.get("recency_share")),
            "churn": percent(row.get("churn")),
        }
        for row in ordered
        if row["arm"] != "full"
    ]


def long_rows(rows: Iterable[Row]) -> Cells:
    """Long texts: how well the tokens that depend on early entries are still predicted."""
    return [
        {
            "text": row["text"],
            "policy": row["arm"],
            "tokens": _budget(row),
            **_closeness(row),
            "right": percent(row["accuracy"]),
            "right, dense": percent(row["dense_accuracy"]),
            "log-probability lost": number(row["logprob_loss"], digits=_KL_DIGITS),
            "times fewer reads": _times(row["reduction"]),
            "predictions": str(row["scored"]),
        }
        for row in sorted(rows, key=lambda row: (row["text"], row["budget"], row["kl"]))
    ]


def generation_rows(rows: Iterable[Row]) -> Cells:
    """Free generations: what their tokens are worth to dense decode, and where they end."""
    return [
        {
            "policy": row["arm"],
            "tokens": _budget(row),
            "text": f"{row['text']} {row['seed']}",
            "temperature": f"{row['temperature']:g}",
            "generated": str(row["tokens"]),
            "log-probability": number(row["logprob"]),
            "lost to dense's own": number(row["logprob_loss"], digits=_KL_DIGITS),
            "agreement": percent(row["agreement"]),
            "KL": number(row["kl"], digits=_KL_DIGITS),
            "leaves dense's text at": _place(row["diverges_at"]),
            "first end of text": _place(row["eos_at"]),
            "dense's": _place(row["dense_eos_at"]),
            "distinct": percent(row["distinct"]),
            "times fewer reads": _times(row["reduction"]),
        }
        for row in rows
    ]


def layout_rows(rows: Iterable[Row]) -> Cells:
    """Layout modes by kv_select, dense over the same prefill among them."""
    ordered = sorted(rows, key=lambda row: (row["prefill"], row["kl_full"]))
    return [
        {
            "kept positions": row["prefill"].partition("/")[2] or row["prefill"],
            "layout": row["arm"].partition("=")[2] or row["arm"],
            "answers of full": _needles(row["needle"], "of_full"),
            "of dense over the same": _needles(row["needle"], "of_dense"),
            "KL to the unpruned": number(row["kl_full"], digits=_KL_DIGITS),
            "agreement with it": percent(row["agreement_full"]),
            **_closeness(row),
            "times fewer reads": _times(row["reduction"]),
            "than unpruned dense": _times(row["reduction_of_unpruned"]),
        }
        for row in ordered
    ]


def ablation_rows(rows: Sequence[Row]) -> Cells:
    """One group of the ablations; needles where it has them."""
    asked = any(row["needle"] for row in rows)
    return [
        {
            "arm": row["arm"],
            "tokens": _budget(row),
            "prefill": row["prefill"],
            **_closeness(row),
            "recall": percent(row["recall"]),
            "times fewer reads": _times(row["reduction"]),
            "pages a sparse layer": number(row["mean_pages"], digits=1),
            **({"answers of full": _needles(row["needle"], "of_full")} if asked else {}),
        }
        for row in rows
    ]


def frontier_rows(points: Iterable[Row]) -> Cells:
    """Those that no arm beats in both reads and agreement."""
    return [
        {
            "arm": point["arm"],
            "group": point["group"],
            "tokens": _budget(point),
            "reads of dense's": percent(point["read"]),
            "agreement": percent(point["agreement"]),
            "KL": number(point["kl"], digits=_KL_DIGITS),
        }
        for point in points
        if point["best"]
    ]


def calibration_rows(curves: Mapping[str, Any] | None) -> Cells:
    """Full layers by each rule, with the recall that is expected of them."""
    if curves is None:
        return []
    expected = curves["expected"]
    nothing = [None] * len(expected["set"])
    columns = {
        "recall": (expected["recall"], percent),
        "10th percentile": (expected["low_recall"], percent),
        "weighted": (expected["weighted_recall"], percent),
        "KL": (expected.get("kl", nothing), _kl),
        "agreement": (expected.get("agreement", nothing), percent),
    }
    return [
        {
            "rule": f"{name}, chosen" if name == curves["chosen_by"] else name,
            "full layers": ", ".join(map(str, curves["full_layers"][name])),
            **{title: told(values[index]) for title, (values, told) in columns.items()},
        }
        for index, name in enumerate(expected["set"])
    ]


def arm_rows(rows: Iterable[Row]) -> Cells:
    """What each arm is: the roles of its layers, and its parameters."""
    return [
        {
            "arm": row["arm"],
            "tokens": _budget(row),
            "prefill": row["prefill"],
            "group": row["group"],
            "policy": row["policy"],
            "layers": row["roles"],
            "parameters": ", ".join(f"{key}={value}" for key, value in row["sparsity"].items()),
        }
        for row in rows
    ]


def _kl(value: float | None) -> str:
    return number(value, digits=_KL_DIGITS)


def _closeness(row: Row) -> dict[str, str]:
    return {
        "KL": _with_interval(row.get("kl"), row.get("kl_interval")),
        "agreement": _agreement(row.get("agreement")),
    }


def _with_interval(value: float | None, bounds: Sequence[float] | None) -> str:
    told = number(value, digits=_KL_DIGITS)
    if bounds is None:
        return told
    low, high = (number(bound, digits=_KL_DIGITS) for bound in bounds)
    return f"{told} ({low} to {high})"


def _agreement(share: Mapping[str, Any] | None) -> str:
    if share is None or share["share"] is None:
        return "-"
    return f"{share['share']:.1%} ({share['low']:.1%} to {share['high']:.1%})"


def _needles(needle: Row | None, of: str) -> str:
    return share_text(None if needle is None else needle[of])


def _budget(row: Row) -> str:
    return "all" if row["arm"] == DENSE or not row["budget"] else str(row["budget"])


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"


def _place(index: int | None) -> str:
    return "-" if index is None else str(index)

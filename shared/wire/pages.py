"""Summaries of page selection on the wire."""

from protos.tandem.v1 import common_pb2
from shared.types.page_summary import PageSummary


def pages_to_pb(summary: PageSummary) -> common_pb2.PageSummary:
    """Converts a summary; None stays unset."""
    return common_pb2.PageSummary(
        policy=summary.policy,
        page_budget=summary.page_budget,
        recency_pages=summary.recency_pages,
        layout=summary.layout,
        heads=summary.heads,
        refresh=summary.refresh_every,
        mass=summary.mass,
    )


def pages_from_pb(message: common_pb2.PageSummary) -> PageSummary:
    """Converts a summary; nothing in it is refused, since it is only shown."""
    given = {field.name: value for field, value in message.ListFields() if field.name != "policy"}
    given["refresh_every"] = given.pop("refresh", None)
    return PageSummary(policy=message.policy, **given)

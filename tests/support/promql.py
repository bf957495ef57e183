"""What PromQL expressions ask for, held against the table of what /metrics shows."""

from collections.abc import Collection, Iterator

import promql_parser

from tests.support.metric_table import LABEL_VALUES, TABLE, Metric

PREFIX = "tandem_"
OF_PROMETHEUS = {"up"}
"""Series that Prometheus makes itself."""
OF_TARGETS = {"instance", "job"}
"""Labels that Prometheus gives every series."""

_PARTS = {
    "_bucket": frozenset({"le"}),
    "_sum": frozenset[str](),
    "_count": frozenset[str](),
}


def nodes(expression: str) -> list[promql_parser.Expr]:
    """Every part of an expression.

    Raises:
        ValueError: it is no PromQL.
    """
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return found


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Each place where series are selected."""
    for node in nodes(expression):
        if isinstance(node, promql_parser.VectorSelector):
            yield node


def grouping(expression: str) -> set[str]:
    """Labels that sums are grouped by and that sides are joined on."""
    found: set[str] = set()
    for node in nodes(expression):
        modifier = getattr(node, "modifier", None)
        matching = getattr(modifier, "matching", modifier)
        found |= set(getattr(matching, "labels", None) or ())
    return found


def metrics_behind(series: str) -> list[tuple[Metric, frozenset[str]]]:
    """The metrics of that series, one a role that has it, and the labels its part adds."""
    name = series.removeprefix(PREFIX)
    found = []
    for table in TABLE.values():
        if name in table and table[name].kind != "histogram":
            found.append((table[name], frozenset[str]()))
        for part, added in _PARTS.items():
            metric = table.get(name.removesuffix(part)) if name.endswith(part) else None
            if metric is not None and metric.kind == "histogram":
                found.append((metric, added))
    return found


def faults(expression: str, *, recorded: Collection[str] = ()) -> list[str]:
    """What the expression asks for that no role shows, in words; empty when all of it exists.

    Args:
        expression: PromQL.
        recorded: names of recording rules that it may use.
    """
    said, labels = [], set(OF_TARGETS)
    for selector in selectors(expression):
        name = selector.name or ""
        if name in OF_PROMETHEUS or name in recorded:
            continue
        behind = metrics_behind(name) if name.startswith(PREFIX) else []
        if not behind:
            said.append(f"{name} is shown by no role")
            continue
        own = {label for metric, added in behind for label in (*metric.labels, *added)}
        labels |= own
        for matcher in selector.matchers.matchers:
            if matcher.name not in own | OF_TARGETS:
                said.append(f"{name} has no label {matcher.name}")
            elif matcher.name == "le":
                bounds = {str(float(bound)) for metric, _ in behind for bound in metric.buckets}
                if matcher.value not in bounds:
                    said.append(f"{name} has no bucket {matcher.value}")
            elif not _may_be(matcher):
                said.append(f"{name} never has {matcher.name}={matcher.value}")
    said.extend(f"nothing has the label {label}" for label in grouping(expression) - labels)
    return said


def _may_be(matcher: promql_parser.Matcher) -> bool:
    known = LABEL_VALUES.get(matcher.name)
    equal = str(matcher.op) == str(promql_parser.MatchOp.Equal)
    return known is None or not equal or matcher.value in known

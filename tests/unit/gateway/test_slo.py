"""Which requests keep within the bounds."""

from prometheus_client import CollectorRegistry

from gateway.job import RequestReport
from gateway.slo import SloBounds, SloWatch
from shared.telemetry.metrics import GatewayMetrics
from tests.support.gateway_jobs import job_of


class Watched:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        bounds = SloBounds(ttft_s=1.0, tpot_s=0.1)
        self.watch = SloWatch(GatewayMetrics(self._registry), bounds=bounds)

    def answer(self, *, ttft_s: float, tokens_per_s: float) -> None:
        report = RequestReport(ttft_s=ttft_s, tokens_per_s=tokens_per_s)
        self.watch.finished(job_of("a"), report, completion_tokens=4)

    def fail(self, code: str, outcome: str = "error") -> None:
        self.watch.answered(endpoint="x", code=code, outcome=outcome, seconds=1.0)

    def counts(self, slo: str) -> tuple[float, float]:
        def value(name: str) -> float:
            return self._registry.get_sample_value(name, {"slo": slo}) or 0.0

        return value("tandem_slo_met_total"), value("tandem_slo_total")


def test_both_bounds_are_needed_for_goodput():
    seen = Watched()
    seen.answer(ttft_s=1.0, tokens_per_s=10.0)  # just in time
    seen.answer(ttft_s=1.1, tokens_per_s=20.0)
    seen.answer(ttft_s=0.5, tokens_per_s=5.0)
    assert seen.counts("ttft") == (2, 3)
    assert seen.counts("tpot") == (2, 3)
    assert seen.counts("goodput") == (1, 3)


def test_an_answer_of_one_token_has_no_pace():
    seen = Watched()
    seen.answer(ttft_s=0.5, tokens_per_s=0.0)
    assert seen.counts("tpot") == (0, 0)
    assert seen.counts("goodput") == (1, 1)


def test_our_failures_were_offered_and_not_met():
    seen = Watched()
    for code in ("500", "503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED"):
        seen.fail(code)
    assert seen.counts("goodput") == (0, 5)


def test_a_clients_mistakes_and_cancels_count_nowhere():
    seen = Watched()
    for code in ("400", "401", "404", "INVALID_ARGUMENT"):
        seen.fail(code)
    seen.fail("499", outcome="cancelled")
    seen.fail("200", outcome="ok")
    assert seen.counts("goodput") == (0, 0)

"""Jobs of the gateway for tests that need no gateway."""

from gateway.job import GenerationJob
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions


def job_of(name: str, *, tokens: int = 3) -> GenerationJob:
    """A job with so many prompt tokens."""
    return GenerationJob(
        request_id=name,
        endpoint="/v1/completions",
        model="tiny",
        prompt_ids=list(range(tokens)),
        sampling=SamplingParams(),
        stop=StopConditions(max_tokens=4),
        options=RequestOptions(),
        arrived=0.0,
        deadline=1.0,
    )

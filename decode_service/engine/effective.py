"""DELTA parameters of one request: the model profile's, changed by what the request asks for."""

from dataclasses import replace

from decode_service.sparsity.base import PagePolicy
from decode_service.sparsity.registry import policy_for
from shared.errors import ConfigError, InvalidRequestError
from shared.types.methods import SparsityParams
from shared.types.options import RequestOptions


def effective_sparsity(profile: SparsityParams, options: RequestOptions) -> SparsityParams | None:
    """The parameters to use, or None for dense decoding.

    Raises:
        InvalidRequestError: the overrides contradict each other or the profile.
    """
    if not options.mode.sparsifies:
        return None
    budget, recency = options.page_budget, options.recency_pages
    try:
        return replace(
            profile,
            page_budget=profile.page_budget if budget is None else budget,
            recency_pages=profile.recency_pages if recency is None else recency,
        )
    except ConfigError as error:
        raise InvalidRequestError(
            f"the request's page selection does not work: {error.message}; raise "
            "tandem.page_budget or lower tandem.recency_pages",
            param="tandem.recency_pages" if recency == 0 else "tandem.page_budget",
        ) from error


def effective_policy(
    profile: SparsityParams, options: RequestOptions, *, num_layers: int
) -> PagePolicy:
    """What the layers of one request read.

    Raises:
        InvalidRequestError: the overrides contradict each other or the profile.
    """
    return policy_for(effective_sparsity(profile, options), num_layers=num_layers)

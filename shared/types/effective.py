"""A profile's parameters as one request changes them; both services must agree on them."""

from dataclasses import replace

from shared.errors import ConfigError, InvalidRequestError
from shared.types.methods import SparsityParams
from shared.types.options import RequestOptions


def effective_sparsity(profile: SparsityParams, options: RequestOptions) -> SparsityParams | None:
    """The DELTA parameters to use, or None for dense decoding.

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

"""A profile's parameters as one request changes them; both services must agree on them."""

from dataclasses import replace

from shared.errors import ConfigError, InvalidRequestError
from shared.types.methods import SparsityParams
from shared.types.options import PAGE_FIELDS, RequestOptions
from shared.types.page_policies import PagePolicyName


def effective_sparsity(
    profile: SparsityParams, options: RequestOptions, *, num_layers: int
) -> SparsityParams | None:
    """The parameters of page selection to use, or None for dense decoding.

    Args:
        profile: the model profile's.
        options: what the request changes.
        num_layers: decoder layers of the model.

    Raises:
        InvalidRequestError: the overrides contradict each other, the profile or the model.
    """
    if not options.mode.sparsifies:
        return None
    policy = options.page_policy or PagePolicyName(profile.policy)
    options.check_pages(policy)
    if num_layers < policy.min_layers:
        raise InvalidRequestError(
            f"the page policy {policy.value} needs a model of {policy.min_layers} layers or more, "
            f"this one has {num_layers}; choose another",
            param="tandem.page_policy",
        )
    changes = {
        field: getattr(options, name)
        for name, field in PAGE_FIELDS.items()
        if getattr(options, name) is not None
    }
    budget = changes.get("page_budget", profile.page_budget)
    if "recency_pages" not in policy.reads:
        # The profile's L means nothing here and must not stand in the way of a small K.
        changes["recency_pages"] = max(1, min(profile.recency_pages, budget - 2))
    try:
        return replace(profile, policy=policy.value, **changes)
    except ConfigError as error:
        raise InvalidRequestError(
            f"the request's page selection does not work: {error.message}; raise "
            "tandem.page_budget or lower tandem.recency_pages",
            param="tandem.recency_pages" if options.recency_pages == 0 else "tandem.page_budget",
        ) from error

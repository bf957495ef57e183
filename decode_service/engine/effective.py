"""The page policy of one request: the model profile's, changed by what the request asks for."""

from decode_service.sparsity.base import PagePolicy
from decode_service.sparsity.registry import policy_for
from shared.types.effective import effective_sparsity
from shared.types.methods import SparsityParams
from shared.types.options import RequestOptions


def effective_policy(
    profile: SparsityParams, options: RequestOptions, *, num_layers: int
) -> PagePolicy:
    """What the layers of one request read.

    Raises:
        InvalidRequestError: the overrides contradict each other or the profile.
    """
    return policy_for(
        effective_sparsity(profile, options, num_layers=num_layers), num_layers=num_layers
    )

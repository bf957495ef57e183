"""The table of page policies. Adding one: a file beside `delta.py`, a line here."""

from typing import Protocol

from decode_service.sparsity.base import PagePolicy
from decode_service.sparsity.delta import DeltaPolicy
from decode_service.sparsity.dense import DensePolicy
from decode_service.sparsity.h2o import H2oPolicy
from decode_service.sparsity.less_is_more import LessIsMorePolicy
from decode_service.sparsity.oracle_topk import OracleTopkPolicy
from decode_service.sparsity.quest import QuestPolicy, SharedQuestPolicy
from decode_service.sparsity.raas import RaasPolicy
from decode_service.sparsity.random import RandomPolicy
from decode_service.sparsity.recency import RecencyPolicy
from decode_service.sparsity.streaming import StreamingPolicy
from decode_service.sparsity.tidal import TidalPolicy
from shared.registry.registry import Registry
from shared.types.methods import SparsityParams


class PolicyFactory(Protocol):
    """Makes a policy for one request."""

    def __call__(self, params: SparsityParams, *, num_layers: int) -> PagePolicy:
        """Makes it from the request's effective parameters.

        Raises:
            ConfigError: the parameters do not fit the model.
        """


def page_policies() -> Registry[PolicyFactory]:
    """Every policy by name."""
    registry: Registry[PolicyFactory] = Registry("page policy")
    registry.register(DensePolicy.name, DensePolicy)
    registry.register(DeltaPolicy.name, DeltaPolicy)
    registry.register(QuestPolicy.name, QuestPolicy)
    registry.register(SharedQuestPolicy.name, SharedQuestPolicy)
    registry.register(RaasPolicy.name, RaasPolicy)
    registry.register(TidalPolicy.name, TidalPolicy)
    registry.register(LessIsMorePolicy.name, LessIsMorePolicy)
    registry.register(H2oPolicy.name, H2oPolicy)
    registry.register(StreamingPolicy.name, StreamingPolicy)
    registry.register(RecencyPolicy.name, RecencyPolicy)
    registry.register(RandomPolicy.name, RandomPolicy)
    registry.register(OracleTopkPolicy.name, OracleTopkPolicy)
    return registry


def policy_for(params: SparsityParams | None, *, num_layers: int) -> PagePolicy:
    """The policy of a request: the one that its parameters name, dense when it has none.

    Raises:
        ConfigError: no policy has this name, or the parameters do not fit the model.
    """
    if params is None:
        return DensePolicy(num_layers=num_layers)
    return page_policies().get(params.policy)(params, num_layers=num_layers)

"""API keys at the public gRPC port."""

from collections.abc import Callable

import grpc

from gateway.keys.ring import KeyRing
from gateway.principal import set_principal
from shared.errors import AuthenticationError
from shared.rpc.interceptors import AroundCalls, Behaviour, Context, metadata_text

_METADATA_KEY = "authorization"


class AuthenticationInterceptor(AroundCalls):
    """Checks `authorization: Bearer KEY` in the metadata; health and reflection need no key.

    Args:
        ring: checks keys.
        on_refused: told the code of each refusal.
    """

    def __init__(self, ring: KeyRing, *, on_refused: Callable[[str], None]) -> None:
        self._ring = ring
        self._on_refused = on_refused

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        async def checked(request: object, context: Context) -> object:
            try:
                principal = self._ring.authenticate(
                    metadata_text(details.invocation_metadata, _METADATA_KEY)
                )
            except AuthenticationError as error:
                self._on_refused(error.error_code)
                raise
            set_principal(principal)
            return await inner(request, context)

        return checked

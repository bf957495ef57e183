"""A prefill worker connects to no target that its guard refuses."""

import pytest

from prefill_service.engine.job import Target
from prefill_service.rpc.decode_client import DecodeClient
from shared.discovery.address_guard import AddressGuard
from shared.errors import PermissionDeniedError
from shared.types.handoff import HandoffKey
from tests.support.transfer_parts import MODEL


@pytest.mark.parametrize("address", ["169.254.169.254:80", "unix:/run/docker.sock"])
async def test_a_refused_target_is_not_connected_to(address: str) -> None:
    client = DecodeClient(model=MODEL, timeout_s=5.0, guard=AddressGuard())
    try:
        with pytest.raises(PermissionDeniedError):
            await client.abort(Target("d0", address), key=HandoffKey("h"), reason="test")
        assert len(client._channels) == 0
    finally:
        await client.close()

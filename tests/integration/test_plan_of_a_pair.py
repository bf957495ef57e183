"""What lies around compute in a real pair is measured through its gateway."""

import asyncio

import pytest

from deploy.plan_measure import pair_overheads
from tests.support.full_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_pair_tells_its_compute_and_the_client_the_rest(stack: Stack) -> None:
    found = await asyncio.to_thread(pair_overheads, stack.url)
    # A first token takes calls over two hops, and a handoff a commit and a call.
    assert 0 < found.first_token_s < 60
    assert 0 < found.handoff_s < 60

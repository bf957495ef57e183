"""The page's live view in Chromium: figures, workers and drain, flows, waterfalls, keys."""

import pytest
from playwright.async_api import expect

from tests.support.browser import visit
from tests.support.gateway_rig import running_rig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


async def test_workers_figures_flows_and_waterfalls(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir, decodes=2) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        page = visited.page
        await page.click("#tab-live")
        await expect(page.locator("#workers tbody tr")).to_have_count(3)
        await expect(page.locator("#flow")).to_contain_text("No KV has moved yet")
        await rig.chat(max_tokens=5)
        await expect(page.locator("#now")).to_contain_text("1 in the last minute")
        await expect(page.locator("#flow tbody tr")).to_have_count(1)
        assert "p0 → d" in await visited.text("#flow tbody")
        assert await page.locator("#flow path.fast").count() == 1
        await expect(page.locator("#recent tbody tr")).to_have_count(1)
        await page.locator("#recent button").click()
        await expect(page.locator("#recent-waterfall tbody tr")).not_to_have_count(0)
        await expect(page.locator("#recent-waterfall")).to_contain_text("pair: p0 -> d")
        assert visited.complaints == []


async def test_drain_asks_first(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir, decodes=2) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        page = visited.page
        await page.click("#tab-live")
        drain = page.get_by_role("button", name="Drain d1")
        await drain.click()
        await expect(page.locator("#drain-text")).to_contain_text("d1 (decode")
        await page.locator("#drain-dialog").get_by_role("button", name="Cancel").click()
        await expect(page.locator("#drain-dialog")).to_be_hidden()
        assert [worker.draining for worker in rig.decodes] == [False, False]
        await drain.click()
        await page.locator("#drain-dialog").get_by_role("button", name="Drain").click()
        await expect(page.locator("#drain-state")).to_contain_text("d1 drains; 0 requests")
        assert [worker.draining for worker in rig.decodes] == [False, True]
        await expect(page.locator("#workers")).to_contain_text("draining")
        await expect(page.get_by_role("button", name="Drain d1")).to_be_disabled()


async def test_a_drain_that_fails_says_why(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir, poll_interval_s=60.0) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        page = visited.page
        await page.click("#tab-live")
        await page.get_by_role("button", name="Drain d0").click()
        await rig.decodes[0].stop()
        await page.locator("#drain-dialog").get_by_role("button", name="Drain").click()
        await expect(page.locator("#live-error")).to_contain_text("HTTP 503")


async def test_the_feed_comes_back_after_the_page_was_hidden(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        page = visited.page
        feeds = []
        page.on("request", lambda request: feeds.append(request) if "live" in request.url else None)
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        await expect(page.locator("#state-text")).to_have_text("ready")
        async with page.expect_event("requestfailed", lambda failed: "live" in failed.url):
            await page.evaluate(hide, True)
        async with page.expect_request(lambda request: "live" in request.url):
            await page.evaluate(hide, False)
        await expect(page.locator("#state-text")).to_have_text("ready")


async def test_no_worker_is_told_in_the_header(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir, decodes=0) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        await expect(visited.page.locator("#state-text")).to_contain_text("no_decode_worker")
        await expect(visited.page.locator("#state")).to_have_attribute("data-ready", "false")

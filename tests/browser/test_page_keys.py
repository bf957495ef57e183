"""The page behind API keys: it asks for one, keeps it for the tab, and says what a key may not."""

import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.keys.file import write_keys
from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
from tests.support.browser import visit
from tests.support.gateway_rig import DEFAULT_ANSWER, running_rig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def keyed(tiny_model_dir, tmp_path):
    """A gateway that wants keys, and the secrets of a user and of an operator."""
    secrets = {name: new_secret(name) for name in ("user", "operator")}
    records = {
        name: KeyRecord(
            key_id=name, sha256=hash_of(secret), created=utc_now(), admin=name == "operator"
        )
        for name, secret in secrets.items()
    }
    write_keys(tmp_path / "keys.json", records)
    async with running_rig(tiny_model_dir, decodes=2, api_keys=tmp_path / "keys.json") as rig:
        yield rig, secrets


async def enter(page, secret):
    await page.click("#key-open")
    await page.fill("#key", secret)
    await page.keyboard.press("Enter")
    await expect(page.locator("#key-dialog")).to_be_hidden()


async def test_without_a_key_the_page_asks_for_one(browser, keyed):
    rig, _ = keyed
    async with visit(browser, rig.gateway.rest_address) as visited:
        await expect(visited.page.locator("#model-shown")).to_have_text("enter an API key to begin")
        await visited.ask("hi")
        await visited.answered("failed")
        said = await visited.text("#error")
        assert "code invalid_api_key" in said
        assert "HTTP 401" in said
        await visited.page.click("#tab-live")
        await expect(visited.page.locator("#live-error")).to_contain_text("HTTP 401")


async def test_a_users_key_asks_but_does_not_operate(browser, keyed):
    rig, secrets = keyed
    async with visit(browser, rig.gateway.rest_address) as visited:
        await enter(visited.page, secrets["user"])
        await expect(visited.page.locator("#model-shown")).to_contain_text("simulated")
        await visited.ask("hi", max_tokens=64)
        await visited.answered("done")
        assert await visited.text("#answer") == DEFAULT_ANSWER
        await visited.page.click("#tab-live")
        error = visited.page.locator("#live-error")
        await expect(error).to_contain_text("code permission_denied")
        await expect(error).to_contain_text("needs an admin key")


async def test_an_operators_key_sees_and_drains(browser, keyed):
    rig, secrets = keyed
    async with visit(browser, rig.gateway.rest_address) as visited:
        await enter(visited.page, secrets["operator"])
        await visited.page.click("#tab-live")
        await visited.page.get_by_role("button", name="Drain d1").click()
        await visited.page.locator("#drain-dialog").get_by_role("button", name="Drain").click()
        await expect(visited.page.locator("#drain-state")).to_contain_text("d1 drains")
        assert rig.decodes[1].draining


async def test_a_key_lives_as_long_as_its_tab(browser, keyed):
    rig, secrets = keyed
    async with visit(browser, rig.gateway.rest_address) as visited:
        page = visited.page
        await enter(page, secrets["user"])
        await expect(page.locator("#key-open")).to_have_text("API key: set")
        await page.reload()
        await expect(page.locator("#model-shown")).to_contain_text("simulated")
        stored = await page.evaluate(
            "() => [localStorage.length, document.cookie, location.href, sessionStorage.length]"
        )
        assert stored[:2] == [0, ""]
        assert secrets["user"] not in stored[2]
        assert stored[3] == 1
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(other.locator("#model-shown")).to_have_text("enter an API key to begin")
        await page.click("#key-open")
        await page.locator("#key-dialog").get_by_role("button", name="Forget").click()
        await expect(page.locator("#key-open")).to_have_text("API key")
        await expect(page.locator("#model-shown")).to_have_text("enter an API key to begin")
        assert await page.evaluate("() => sessionStorage.length") == 0


async def test_code_names_the_key_without_showing_it(browser, keyed):
    rig, secrets = keyed
    async with visit(browser, rig.gateway.rest_address) as visited:
        await enter(visited.page, secrets["user"])
        for name in ("curl", "python"):
            shown = visited.page.locator(f"#{name}")
            await expect(shown).to_contain_text("TANDEM_API_KEY")
            code = await shown.text_content() or ""
            assert secrets["user"] not in code

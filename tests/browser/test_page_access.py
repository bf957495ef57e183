"""The page for everybody: keyboard, names of controls, contrast, phones, motion, colours."""

import pytest
from playwright.async_api import expect

from tests.support.browser import PHONE, visit
from tests.support.gateway_rig import DEFAULT_ANSWER, running_rig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

TABS = ("play", "compare", "live")

CONTROLS = "button, input, select, textarea, canvas, meter, [role]"
UNNAMED = f"""() => [...document.querySelectorAll("{CONTROLS}")]
    .filter((node) => !node.closest("datalist") && node.checkVisibility())
    .filter((node) => !(node.labels?.length || node.getAttribute("aria-label")
        || document.getElementById(node.getAttribute("aria-labelledby"))
        || ["alert", "status"].includes(node.getAttribute("role")) || node.textContent.trim()))
    .map((node) => node.outerHTML.slice(0, 120))"""

# WCAG 2: relative luminance and contrast of each visible text against what lies under it.
FAINT = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const channel = (value) =>
        value / 255 <= 0.03928 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = numbers(getComputedStyle(at).backgroundColor);
            if (colour[3] !== 0) return colour;
        }
        return [255, 255, 255];
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        const node = text.parentElement;
        const left_out = node.closest(":disabled, svg, .skip") || !node.checkVisibility();
        if (left_out || !text.data.trim()) continue;
        const [a, b] = [light(numbers(getComputedStyle(node).color)), light(ground(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) faint.push([text.data.trim().slice(0, 40), ratio.toFixed(2)]);
    }
    return faint;
}"""


async def answered_page(visited):
    """Everything that a request brings is on the page."""
    await visited.ask("hello there", max_tokens=64)
    await visited.answered()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_stands_out_from_its_ground(browser, tiny_model_dir, scheme):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address, color_scheme=scheme) as visited,
    ):
        await answered_page(visited)
        for tab in TABS:
            await visited.page.click(f"#tab-{tab}")
            await visited.page.evaluate(
                "() => document.querySelectorAll('.error').forEach((node) => {"
                " node.hidden = false; node.append('shown for its colours'); })"
            )
            assert await visited.page.evaluate(FAINT) == [], tab
        background = await visited.page.evaluate(
            "() => getComputedStyle(document.body).backgroundColor"
        )
        assert (background == "rgb(16, 19, 23)") == (scheme == "dark")


async def test_colours_can_be_chosen_against_the_system(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address, color_scheme="light") as visited,
    ):
        theme = visited.page.locator("#theme")
        seen = []
        for name in ("Light", "Dark", "Auto"):
            await theme.click()
            await expect(theme).to_have_text(name)
            seen.append(
                await visited.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            )
        assert seen[0] == seen[2] != seen[1]


async def test_every_control_has_a_name(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        await answered_page(visited)
        for tab in TABS:
            await visited.page.click(f"#tab-{tab}")
            if tab == "live":
                await expect(visited.page.locator("#workers tbody tr")).not_to_have_count(0)
            assert await visited.page.evaluate(UNNAMED) == [], tab
        await visited.page.click("#key-open")
        assert await visited.page.evaluate(UNNAMED) == []


async def test_a_keyboard_is_enough(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        page, press = visited.page, visited.page.keyboard.press
        await press("Tab")
        await expect(page.locator(".skip")).to_be_focused()
        await page.locator("#tab-play").focus()
        await press("ArrowRight")
        await expect(page.locator("#tab-compare")).to_be_focused()
        await expect(page.locator("#view-compare")).to_be_visible()
        await expect(page.locator("#view-play")).to_be_hidden()
        await press("ArrowLeft")
        await press("ArrowLeft")
        await expect(page.locator("#tab-live")).to_have_attribute("aria-selected", "true")
        await press("ArrowRight")
        await page.locator('[name="prompt"]').focus()
        await page.keyboard.type("hello")
        await press("Control+Enter")
        await visited.answered("done")
        await page.locator("#key-open").focus()
        await press("Enter")
        await expect(page.locator("#key")).to_be_focused()
        await press("Escape")
        await expect(page.locator("#key-dialog")).to_be_hidden()
        await expect(page.locator("#key-open")).to_be_focused()


async def test_a_screen_reader_hears_the_answer_when_it_is_whole(
    browser,
    tiny_model_dir,
):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        answer = visited.page.locator("#answer")
        await expect(answer).to_have_attribute("aria-live", "polite")
        await visited.watch()
        await visited.ask("hi", max_tokens=64)
        await visited.answered("done: stop")
        states = await visited.watched()
        assert all(busy for busy, text, _ in states if 0 < len(text) < len(DEFAULT_ANSWER))
        assert {status for busy, _, status in states if busy} >= {"streaming"}
        await expect(answer).to_have_attribute("aria-busy", "false")
        await expect(visited.page.locator("#run-state")).to_have_attribute("role", "status")


@pytest.mark.parametrize("width", [320, PHONE["width"], 768])
async def test_nothing_runs_over_the_edge_of_a_phone(browser, tiny_model_dir, width):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(
            browser,
            rig.gateway.rest_address,
            viewport={"width": width, "height": 740},
            has_touch=True,
        ) as visited,
    ):
        page = visited.page
        await answered_page(visited)
        for tab in TABS:
            await page.click(f"#tab-{tab}")
            edge = await page.evaluate("() => document.documentElement.scrollWidth")
            assert edge <= width, tab
        await page.click("#tab-play")
        small = await page.evaluate(
            """() => [...document.querySelectorAll("button:not(.link)")]
                .filter((node) => node.checkVisibility())
                .map((node) => [node.id, node.getBoundingClientRect()])
                .filter(([, box]) => box.height < 38 || box.width < 38).map(([id]) => id)"""
        )
        assert small == []


async def test_phones_show_the_prompt_before_the_options(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address, viewport=PHONE) as visited,
    ):
        options = visited.page.locator(".options")
        assert await options.count() == 3
        for folded in await options.all():
            assert await folded.get_attribute("open") is None
        await expect(visited.page.locator("#send")).to_be_in_viewport()


async def test_nothing_moves_for_those_who_asked_for_it(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address, reduced_motion="reduce") as visited,
    ):
        rig.decodes[0].plan.at("token:3", 20.0)
        await visited.ask("hi", max_tokens=64)
        await expect(visited.page.locator("#answer")).to_have_attribute("aria-busy", "true")
        moving = (
            """() => getComputedStyle(document.getElementById("answer"), "::after").animationName"""
        )
        assert await visited.page.evaluate(moving) == "none"
        await visited.page.click("#stop")
        await visited.answered("stopped")

"""The page's pictures of a real pair: waterfall, heat map, strip, comparison, screenshots."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.support.browser import Visit, visit
from tests.support.decode_server import write_profile
from tests.support.full_stack import running_stack

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PROMPT = "The quick brown fox jumps over the lazy dog, and the dog looks on. " * 6


@dataclass
class Shown:
    """A page after one traced request, and the trace that the page got."""

    visited: Visit
    trace: dict[str, Any]

    async def pixel(self, canvas: Locator, row: int, col: int) -> Any:
        """Colour of a cell."""
        # Read from a copy: browsers warn of readings that slow the page's own canvas down.
        return await canvas.evaluate(
            """(node, [row, col]) => {
                const copy = new OffscreenCanvas(node.width, node.height);
                const context = copy.getContext("2d", { willReadFrequently: true });
                context.drawImage(node, 0, 0);
                return [...context.getImageData(col, row, 1, 1).data];
            }""",
            [row, col],
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(browser, tiny_model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    async with (
        running_stack(tiny_model_dir, write_profile(folder)) as stack,
        visit(browser, stack.gateway.rest_address) as visited,
    ):
        async with visited.page.expect_response(lambda r: "completions" in r.url) as caught:
            await visited.ask(PROMPT, max_tokens=24, mode="both", keep_rate=0.3)
            await visited.answered("done")
        response = await caught.value
        frames = [line[6:] for line in (await response.text()).splitlines() if line[:6] == "data: "]
        report = json.loads(frames[-2])["tandem"]
        await visited.page.screenshot(path=folder / "playground.png", full_page=True)
        for name in ("waterfall", "heat", "strip"):
            await visited.page.locator(f"#{name}").screenshot(path=folder / f"{name}.png")
        assert all((folder / f"{name}.png").stat().st_size > 1000 for name in ("heat", "strip"))
        yield Shown(visited, report["trace"])
        assert visited.complaints == []


async def test_the_waterfall_has_every_bar_of_the_trace(shown):
    rows = shown.visited.page.locator("#waterfall tbody tr")
    bars = shown.trace["waterfall"]
    await expect(rows).to_have_count(len(bars))
    for index, bar in enumerate(bars):
        text = await rows.nth(index).inner_text()
        assert f"{bar['hop']}: {bar['phase']}" in text
        assert f"{bar['ms']:.1f}" in text
    hops = [bar["hop"] for bar in bars]
    assert hops[0] == "gateway"
    assert {"prefill", "transfer", "decode"} < set(hops)
    await shown.visited.page.get_by_label("whole request").check()
    ends = max(bar["start_ms"] + bar["ms"] for bar in bars)
    await expect(shown.visited.page.locator("#waterfall thead")).to_contain_text(
        f"0 to {max(ends, shown.trace['ttft_ms']):.0f} ms"
    )


async def test_a_cell_of_the_heat_map_is_a_layer_and_a_column(shown):
    prompt = shown.trace["prompt"]
    canvas = shown.visited.page.locator("#heat canvas")
    rows = sum(len(layout["layers"]) for layout in prompt["layouts"]) + 1
    size = await canvas.evaluate("(node) => [node.height, node.width]")
    assert size == [rows, len(prompt["layouts"][0]["share"])]
    pruned = min(prompt["layouts"], key=lambda layout: layout["kept_tokens"])
    whole = max(prompt["layouts"], key=lambda layout: layout["kept_tokens"])
    dropped = pruned["share"].index(0.0)
    on = await shown.pixel(canvas, whole["layers"][0] + 1, dropped)
    off = await shown.pixel(canvas, pruned["layers"][0] + 1, dropped)
    kept = await shown.pixel(canvas, pruned["layers"][0] + 1, pruned["share"].index(1.0))
    assert on == kept != off


async def test_arrow_keys_read_the_heat_map_out(shown):
    page, prompt = shown.visited.page, shown.trace["prompt"]
    await page.locator("#heat canvas").focus()
    await page.keyboard.press("Home")
    layers = sum(len(layout["layers"]) for layout in prompt["layouts"])
    for _ in range(layers):
        await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowDown")
    said = page.locator("#heat output")
    await expect(said).to_have_attribute("aria-live", "polite")
    await expect(said).to_contain_text("layer 0, token")
    await expect(said).to_contain_text("100 % kept")
    pruned = min(prompt["layouts"], key=lambda layout: layout["kept_tokens"])
    for _ in range(pruned["layers"][-1]):
        await page.keyboard.press("ArrowDown")
    for _ in range(pruned["share"].index(0.0)):
        await page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text(f"layer {pruned['layers'][-1]}, token")
    await expect(said).to_contain_text("0 % kept")


async def test_hovering_shows_the_token_under_the_pointer(shown):
    canvas = shown.visited.page.locator("#heat canvas")
    box = await canvas.bounding_box()
    assert box
    await canvas.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    await expect(shown.visited.page.locator("#heat output")).to_contain_text('"')


async def test_all_layers_can_be_shown_as_one(shown):
    page = shown.visited.page
    box = page.get_by_label("all layers together")
    await box.check()
    height = await page.locator("#heat canvas").evaluate("(node) => node.height")
    assert height == 2
    await box.uncheck()


async def test_the_prompt_is_shown_with_what_was_dropped(shown):
    page, prompt = shown.visited.page, shown.trace["prompt"]
    pruned = min(prompt["layouts"], key=lambda layout: layout["kept_tokens"])
    await page.locator("#heat details").evaluate("(node) => { node.open = true }")
    assert await page.locator("#heat .held").count() == len(pruned["spans"])
    assert await page.locator("#heat .lost").count() > 0
    assert PROMPT.strip() in await page.locator("#heat .tokens").inner_text()


async def test_a_row_of_the_strip_is_a_step(shown):
    pages, page = shown.trace["pages"], shown.visited.page
    canvas = page.locator("#strip canvas")
    size = await canvas.evaluate("(node) => [node.height, node.width]")
    assert size == [len(pages["steps"]), pages["columns"] + 2]
    assert str(pages["total_steps"]) in await shown.visited.text("#strip")
    assert await page.locator("#strip option").count() == len(pages["layers"])
    lit = {index for start, end in pages["steps"][-1]["read"][0] for index in range(start, end)}
    first = pages["layers"][0]["prompt_slots"] // pages["column_slots"]
    colours = [
        tuple(await shown.pixel(canvas, len(pages["steps"]) - 1, column + 2))
        for column in range(first)
    ]
    assert len({colours[column] for column in lit if column < first}) == 1
    unlit = {colours[column] for column in set(range(first)) - lit}
    assert not unlit & {colours[column] for column in lit if column < first}


async def test_steps_that_chose_anew_are_marked_and_told(shown):
    pages, page = shown.trace["pages"], shown.visited.page
    canvas = page.locator("#strip canvas")
    marks = [tuple(await shown.pixel(canvas, row, 0)) for row in range(len(pages["steps"]))]
    anew = [bool(step["refreshed"]) for step in pages["steps"]]
    assert any(anew)
    assert len(set(marks)) == len(set(anew))
    await canvas.focus()
    await page.keyboard.press("Home")
    await expect(page.locator("#strip output")).to_contain_text(
        f"step {pages['steps'][0]['step']},"
    )


async def test_a_theme_repaints_the_pictures(shown):
    page = shown.visited.page
    canvas = page.locator("#heat canvas")
    seen = []
    for _ in range(3):
        await page.click("#theme")
        seen.append(await shown.pixel(page.locator("#heat canvas"), 2, 0))
    assert seen[0] == seen[2] != seen[1]
    await expect(canvas).to_be_visible()


async def test_without_a_trace_the_lengths_are_shown(shown):
    page = shown.visited.page
    async with visit(page.context.browser, page.url.removeprefix("http://").rstrip("/")) as visited:
        await visited.page.get_by_label("trace:").uncheck()
        await visited.ask("short", max_tokens=4)
        await visited.answered("done")
        await expect(visited.page.locator("#waterfall")).to_contain_text("trace was off")
        await expect(visited.page.locator("#waterfall tbody tr")).not_to_have_count(0)
        await expect(visited.page.locator("#heat")).to_contain_text("No prefill was traced")


async def test_both_answers_stand_side_by_side_up_to_where_they_part(shown):
    page = shown.visited.page
    await page.click("#tab-compare")
    await page.click("#compare-run")
    await expect(page.locator("#compare-state")).to_have_text("done")
    await page.locator("#view-compare").screenshot()
    table = page.locator("#compare-table")
    await expect(table.locator("tbody tr")).to_have_count(8)
    ratio = await table.locator("tbody tr", has_text="read / full").inner_text()
    assert "1.000" in ratio
    kept = await table.locator("tbody tr", has_text="prompt tokens kept").inner_text()
    full, fast = [float(cell) for cell in kept.split("\t")[1:3]]
    assert full > fast
    verdict = await page.locator("#divergence").inner_text()
    marks = page.locator("#view-compare mark")
    if verdict.startswith("No difference"):
        await expect(marks).to_have_count(0)
    else:
        assert verdict.startswith("First difference at token ")
        await expect(marks).to_have_count(2)
    await page.click("#tab-play")

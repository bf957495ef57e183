"""The page's files and the operators' routes over HTTP; the page itself is tested in a browser."""

import asyncio
import json
import re
from importlib import resources

import pytest

from deploy.banner import page_text
from gateway.page.assets import load_assets
from gateway.routes.admin import LIVE, WORKERS
from gateway.routes.page import POLICY
from shared.types.page_policies import PagePolicyName
from tests.support.gateway_rig import running_rig, until

SECURE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


async def feed_states(rig, count):
    """The first states of the live feed."""
    states = []
    async with rig.http.stream("GET", LIVE) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                states.append(json.loads(line.removeprefix("data: ")))
            if len(states) == count:
                return states
    raise AssertionError("the feed ended by itself")


async def test_the_document_and_every_file_that_it_links_to(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig:
        index = await rig.http.get("/")
        assert index.status_code == 200
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        assert index.headers["cache-control"] == "no-cache"
        assert SECURE.items() <= dict(index.headers).items()
        assert await page_text(rig.url) == f"{rig.url}/"
        links = re.findall(r'(?:src|href)="(page/[^"]+)"', index.text)
        assert len(links) == 3
        for link in links:
            file = await rig.http.get(f"/{link}")
            assert file.status_code == 200
            assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert SECURE.items() <= dict(file.headers).items()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    assert "unsafe" not in POLICY
    for name, asset in load_assets().files.items():
        text = asset.content.decode()
        for address in re.findall(r"https?://[^\"'\s)`]+", text):
            assert address == "http://www.w3.org/2000/svg", f"{name} names {address}"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    document = load_assets().index.content.decode()
    assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*src=)", document)


def test_scripts_import_only_files_that_are_there():
    files = load_assets().files
    imported = {
        name: set(re.findall(r'from "\./([^"]+)"', asset.content.decode()))
        for name, asset in files.items()
    }
    assert {"api.js", "dom.js"} <= imported["playground.js"]
    assert set().union(*imported.values()) <= set(files)


def test_the_page_is_small():
    assets = load_assets()
    assert sum(len(a.content) for a in (assets.index, *assets.files.values())) < 120_000


def test_the_page_offers_every_page_policy():
    options = re.findall(r"<option>([a-z0-9_]+)</option>", load_assets().index.content.decode())
    assert sorted(options) == sorted(policy.value for policy in PagePolicyName)


async def test_head_and_revalidation(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig:
        index = await rig.http.get("/")
        head = await rig.http.head("/")
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-length"] == str(len(index.content))
        again = await rig.http.get("/", headers={"if-none-match": index.headers["etag"]})
        assert again.status_code == 304
        assert again.content == b""
        other = await rig.http.get("/", headers={"if-none-match": '"0000"'})
        assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/{version}/../assets.py",
        "/page/{version}/..%2fassets.py",
        "/page/{version}/%2e%2e/%2e%2e/app.py",
        "/page/{version}/..%5c..%5capp.py",
        "/page/{version}//etc/passwd",
        "/page/{version}/index.html",
        "/page/{version}/",
        "/page/{version}/main.js%00.css",
        "/page/0123456789abcdef/main.js",
        "/page/../app.py",
    ],
)
async def test_no_path_leads_out_of_the_page(tiny_model_dir, path):
    async with running_rig(tiny_model_dir) as rig:
        host, port = rig.gateway.rest_address.split(":")
        # A raw request: HTTP clients tidy up such paths before they send them.
        reader, writer = await asyncio.open_connection(host, int(port))
        target = path.format(version=load_assets().version)
        writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        assert " 404 " in answer.splitlines()[0]
        assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "not_found"


async def test_only_reading_is_possible(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig:
        refused = await rig.http.post("/", content=b"x")
        assert refused.status_code == 405
        assert refused.json()["error"]["code"] == "method_not_allowed"


async def test_the_page_can_be_turned_off(tiny_model_dir):
    async with running_rig(tiny_model_dir, page=False) as rig:
        version = load_assets().version
        for path in ("/", f"/page/{version}/main.js"):
            gone = await rig.http.get(path)
            assert gone.status_code == 404
            assert gone.json()["error"]["code"] == "not_found"
        assert (await rig.chat()).status_code == 200
        assert "turned off" in await page_text(rig.url)


def test_every_file_is_part_of_the_version():
    assets = load_assets()
    names = {entry.name for entry in (resources.files("gateway.page") / "static").iterdir()}
    assert {*assets.files, "index.html"} == names
    assert assets.version.encode() in assets.index.content
    assert b"@VERSION@" not in assets.index.content


async def test_the_feed_tells_what_happens(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig:
        (before,) = await feed_states(rig, 1)
        assert before["ready"] is True
        assert before["traffic"]["ttft_ms"] == {"p50": None, "p95": None, "count": 0}
        assert before["flows"] == []
        assert before["queue"]["limit_tokens"] > 0
        await rig.chat(max_tokens=4)
        _, after = await feed_states(rig, 2)
        assert after["traffic"]["requests"] == 1
        assert after["traffic"]["ttft_ms"]["count"] == 1
        assert after["traffic"]["tokens_per_s"] > 0
        (recent,) = after["traffic"]["recent"]
        assert recent["completion_tokens"] == 4
        assert recent["phases_ms"]["prefill"] == 10.0
        (flow,) = after["flows"]
        assert (flow["prefill"], flow["decode"], flow["handoffs"]) == ("p0", "d0", 1)
        assert flow["transport"] == "grpc"
        assert flow["kv_bytes"] == 1000 * recent["prompt_tokens"]
        roles = {worker["worker_id"]: worker["role"] for worker in after["workers"]}
        assert roles == {"p0": "prefill", "d0": "decode"}


async def test_the_feed_holds_no_prompt(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig:
        await rig.chat(messages=[{"role": "user", "content": "my secret is plover"}])
        (state,) = await feed_states(rig, 1)
        assert "plover" not in json.dumps(state)
        assert "Hello world" not in json.dumps(state)


async def test_feeds_are_limited_and_given_back(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig, asyncio.TaskGroup() as group:
        opened = [asyncio.Event() for _ in range(16)]
        leave = asyncio.Event()

        async def look(event):
            async with rig.http.stream("GET", LIVE) as response:
                assert response.status_code == 200
                event.set()
                await leave.wait()

        for event in opened:
            group.create_task(look(event))
        await asyncio.gather(*(event.wait() for event in opened))
        refused = await rig.http.get(LIVE)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_feeds"
        assert "retry-after" in refused.headers
        leave.set()

        async def welcome_again():
            async with rig.http.stream("GET", LIVE) as response:
                return response.status_code == 200

        await until(welcome_again)


async def test_an_open_feed_does_not_hold_up_the_stop(tiny_model_dir):
    async with running_rig(tiny_model_dir) as rig, rig.http.stream("GET", LIVE) as response:
        lines = response.aiter_lines()
        await anext(lines)
        await rig.gateway.close()
        rest = [line async for line in lines]
        assert all(line == "" or line.startswith("data: ") for line in rest)


async def test_drain_reaches_the_worker_and_the_list(tiny_model_dir):
    async with running_rig(tiny_model_dir, decodes=2) as rig:
        answer = await rig.http.post("/admin/workers/d0/drain", json={})
        assert answer.json() == {"worker_id": "d0", "draining": True, "running": 0}
        assert rig.decodes[0].draining
        assert not rig.decodes[1].draining

        async def listed():
            workers = (await rig.http.get(WORKERS)).json()["workers"]
            return [w["worker_id"] for w in workers if w["draining"]] == ["d0"]

        await until(listed)
        assert (await rig.chat()).status_code == 200


async def test_drain_refusals(tiny_model_dir):
    # Nobody looks at the workers again: one that stops stays in the list.
    async with running_rig(tiny_model_dir, poll_interval_s=60.0) as rig:
        unknown = await rig.http.post("/admin/workers/nobody/drain", json={})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "worker_not_found"
        # What a form on another site can send without asking first.
        plain = await rig.http.post(
            "/admin/workers/d0/drain", content="{}", headers={"content-type": "text/plain"}
        )
        assert plain.status_code == 415
        assert "application/json" in plain.json()["error"]["message"]
        assert (await rig.http.get("/admin/workers/d0/drain")).status_code == 405
        await rig.decodes[0].stop()
        gone = await rig.http.post("/admin/workers/d0/drain", json={})
        assert gone.status_code == 503
        assert not rig.decodes[0].draining


async def test_without_keys_only_a_private_gateway_drains(tiny_model_dir):
    async with running_rig(tiny_model_dir, host="0.0.0.0") as rig:  # noqa: S104  a refusal is tested
        port = rig.gateway.rest_address.rsplit(":", 1)[1]
        refused = await rig.http.post(f"http://127.0.0.1:{port}/admin/workers/d0/drain", json={})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "permission_denied"
        assert not rig.decodes[0].draining

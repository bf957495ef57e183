"""Who may import whom: the contracts hold, shared rooms have two services, the gateway is light."""

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("prefill_service", "decode_service", "gateway")
PACKAGES = ("protos", "shared", *SERVICES, "deploy", "loadtest")


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_import_contracts_hold():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_shared_room_serves_at_least_two_services(graph):
    rooms = sorted(graph.find_children("shared"))
    lonely = {}
    for room in rooms:
        modules = {room} | graph.find_descendants(room)
        reached = set().union(*(graph.find_downstream_modules(module) for module in modules))
        users = {name for name in SERVICES if any(m.split(".")[0] == name for m in reached)}
        if len(users) < 2:
            lonely[room] = users
    assert not lonely, f"a room with one consumer belongs into that service: {lonely}"


def test_members_of_a_family_do_not_import_each_other(graph):
    families = {
        "prefill_service.ranking": {"registry", "select", "window_attention", "base"},
        "decode_service.sparsity": {
            "registry",
            "refresh",
            "planner",
            "stateless",
            "correction",
            "page_bounds",
            "page_scores",
            "base",
        },
        "gateway.balancing": {"registry", "base"},
    }
    shared_maths = {"layouts", "score_board"}
    met = []
    for package, common in families.items():
        members = {
            m
            for m in graph.find_children(package)
            if m.rsplit(".", 1)[1] not in common | shared_maths
        }
        met += [
            (a, b)
            for a in members
            for b in members - {a}
            if b in graph.find_modules_directly_imported_by(a)
        ]
    assert not met


def test_room_docstrings_are_all_that_shared_packages_hold():
    for init in (ROOT / "shared").rglob("__init__.py"):
        lines = init.read_text(encoding="utf-8").strip()
        assert lines.startswith('"""'), f"{init} needs its door sentence"
        assert lines.endswith('"""'), f"{init} holds more than its door sentence"


@pytest.mark.parametrize("module", ["gateway.app", "gateway.__main__", "deploy.cli"])
def test_light_processes_do_not_load_torch(module):
    code = (
        f"import sys, {module}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

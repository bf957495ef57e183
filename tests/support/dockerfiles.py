"""What the stages of a Dockerfile say: enough to run one as a process of this machine."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parents[2] / "deploy" / "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage with all that it takes over from the stages below it."""

    base: str
    """Image or stage that it starts from."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables; references to earlier ones are resolved."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    """Command of the health check."""
    user: str = ""
    workdir: str = "/"
    ports: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    """Paths of the context that this stage itself copies."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Keyword and rest of each instruction; lines that go on are joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip():
            keyword, _, rest = line.strip().partition(" ")
            yield keyword.upper(), rest.strip()


def read_stages(path: Path) -> dict[str, Stage]:
    """The named stages of a Dockerfile in order; `ARG` defaults before the first one are known."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    name = ""
    for keyword, rest in instructions(path.read_text(encoding="utf-8")):
        if keyword == "ARG" and not name:
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match.group(1)], base)
            below = stages.get(base)
            stages[name] = replace(below, base=base, copies=()) if below else Stage(base=base)
        else:
            stages[name] = _changed(stages[name], keyword, rest)
    return stages


def _changed(stage: Stage, keyword: str, rest: str) -> Stage:
    if keyword in {"RUN", "SHELL", "ARG"} or (keyword == "COPY" and rest.startswith("--from=")):
        return stage
    if keyword == "ENV":
        added = {key: _resolved(value, stage.env) for key, value in _pairs(rest)}
        return replace(stage, env={**stage.env, **added})
    if keyword == "ENTRYPOINT":
        return replace(stage, entrypoint=tuple(json.loads(rest)), command=())
    name, read = _FIELDS[keyword]
    added_to = getattr(stage, name) if keyword in {"COPY", "LABEL"} else None
    value = read(rest)
    return replace(stage, **{name: value if added_to is None else _joined(added_to, value)})


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "CMD": ("command", lambda rest: tuple(json.loads(rest))),
    "COPY": ("copies", lambda rest: tuple(rest.split()[:-1])),
    "EXPOSE": ("ports", lambda rest: tuple(int(port) for port in rest.split())),
    "HEALTHCHECK": ("health", lambda rest: tuple(json.loads(rest.partition("CMD ")[2]))),
    "LABEL": ("labels", lambda rest: dict(_pairs(rest))),
    "USER": ("user", str),
    "WORKDIR": ("workdir", str),
}
"""Instruction to the field that it sets and how its text is read; an unknown one is a KeyError."""


def _joined(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) else (*old, *new)


def _pairs(rest: str) -> list[tuple[str, str]]:
    words = [word.partition("=") for word in shlex.split(rest)]
    return [(key, value) for key, _, value in words]


def _resolved(value: str, env: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda match: env.get(match.group(1), match.group(0)), value)

"""Doctor: settings, the model on this machine, Redis when it is configured, worker addresses."""

import json
import socket
from pathlib import Path

import redis

from deploy.finding import Finding, Status
from deploy.settings import load_role
from shared.config.secrets import mask_secret
from shared.errors import TandemError
from shared.tokenizer.folder import find_model_folder

_CONNECT_S = 2.0
_ROLES = ("gateway", "prefill", "decode")


def service_checks(cache_dir: Path | None) -> list[Finding]:
    """All findings of this file; without readable settings there is only that one."""
    try:
        settings = {role: load_role(role, file=None).value for role in _ROLES}
    except TandemError as error:
        return [Finding("settings", Status.FAIL, error.message, "tandem config show --origin")]
    gateway = settings["gateway"]
    workers = [*gateway.prefill_workers, *gateway.decode_workers]
    urls = {value.redis_url for value in settings.values()} - {""}
    return [
        Finding("settings", Status.OK, "readable; `tandem config show --origin` lists them"),
        _model(gateway.model_dir or gateway.model, cache_dir or gateway.cache_dir),
        *(_redis(url) for url in sorted(urls)),
        *(_worker(address) for address in workers),
    ]


def _model(name: str, cache_dir: Path | None) -> Finding:
    label = f"model {name}"
    try:
        folder = find_model_folder(name, cache_dir)
    except TandemError as error:
        return Finding(label, Status.FAIL, error.message, f"tandem model pull {name}")
    absent = [
        file for file in ("config.json", "tokenizer_config.json") if not (folder / file).is_file()
    ]
    if not any(folder.glob("*.safetensors")):
        absent.append("*.safetensors")
    if absent:
        return Finding(
            label, Status.FAIL, f"{folder} lacks {', '.join(absent)}", f"tandem model pull {name}"
        )
    if not _has_chat_template(folder):
        return Finding(
            label, Status.NOTE, f"{folder} has no chat template", "only /v1/completions will work"
        )
    return Finding(label, Status.OK, str(folder))


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    text = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    return bool(json.loads(text).get("chat_template"))


def _redis(url: str) -> Finding:
    shown = mask_secret(url)
    client = redis.Redis.from_url(url, socket_connect_timeout=_CONNECT_S, socket_timeout=_CONNECT_S)
    try:
        client.ping()
    except redis.RedisError as error:
        return Finding(
            "Redis", Status.FAIL, f"{shown}: {error}", "start Redis or leave redis_url empty"
        )
    finally:
        client.close()
    return Finding("Redis", Status.OK, shown)


def _worker(address: str) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        return Finding(
            f"worker {address}", Status.FAIL, str(error), "start it or correct the gateway's list"
        )
    return Finding(f"worker {address}", Status.OK, "reachable")

"""Doctor: which KV transports work on this machine, and why the others do not."""

import importlib.util

from deploy.finding import Finding, Status

_NAME = "transport nixl"
_NEEDED = ("numpy", "zlib_ng")


def transport_checks() -> list[Finding]:
    """All findings of this file."""
    absent = [module for module in _NEEDED if importlib.util.find_spec(module) is None]
    if absent:
        return [
            Finding(
                _NAME, Status.NOTE, f"not tried: {', '.join(absent)} absent", "see worker packages"
            )
        ]
    return [_nixl()]


def _nixl() -> Finding:
    from shared.errors import ConfigError
    from shared.transport.nixl_agent import probe_agent

    try:
        text = probe_agent()
    except ConfigError as error:
        return Finding(
            _NAME, Status.NOTE, error.message, "for direct writes: pip install nixl-cu13"
        )
    return Finding(_NAME, Status.OK, text)

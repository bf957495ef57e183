"""Exit codes of every Tandem process, the same for a role started alone and for `tandem`."""

from enum import IntEnum

from shared.errors import ConfigError, ModelLoadError, TandemError


class ExitCode(IntEnum):
    """What a process's end means to a script."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIG = 3
    NO_DEVICE = 4
    PORT_BUSY = 5
    MODEL_LOAD = 6


_BY_ERROR_CODE = {"no_device": ExitCode.NO_DEVICE, "port_in_use": ExitCode.PORT_BUSY}
_BY_CLASS: tuple[tuple[type[TandemError], ExitCode], ...] = (
    (ModelLoadError, ExitCode.MODEL_LOAD),
    (ConfigError, ExitCode.CONFIG),
)


def exit_code_for(error: TandemError) -> ExitCode:
    """The exit code of a process that ends by `error`; its own `code` wins over its class."""
    by_code = _BY_ERROR_CODE.get(error.error_code)
    if by_code is not None:
        return by_code
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), ExitCode.FAILURE)

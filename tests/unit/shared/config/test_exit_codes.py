from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError, InternalError, ModelLoadError


def test_classes_and_codes_map():
    assert exit_code_for(ConfigError("x")) is ExitCode.CONFIG
    assert exit_code_for(ModelLoadError("x")) is ExitCode.MODEL_LOAD
    assert exit_code_for(InternalError("x")) is ExitCode.FAILURE
    assert exit_code_for(ConfigError("x", code="port_in_use")) is ExitCode.PORT_BUSY
    assert exit_code_for(ConfigError("x", code="no_device")) is ExitCode.NO_DEVICE

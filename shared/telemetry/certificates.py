"""Certificates from PEM files that are replaced while the process runs.

Whoever makes a connection asks for the current ones, so a renewed certificate counts from the next
handshake on, without a restart. Files that do not fit together (a renewal is half-way, a key of
another certificate) change nothing: the last good ones stay, and the log says so once.
"""

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import structlog

from shared.errors import ConfigError
from shared.telemetry.file_watch import FileWatch

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where the PEM files are."""

    cert: Path
    """Own certificate, with its intermediates."""
    key: Path
    """Its private key, not encrypted."""
    ca: Path | None = None
    """Authorities that the other side must show a certificate of; None asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TlsMaterial:
    """The content of the files, checked: key and certificate belong together."""

    cert: bytes
    """PEM of the certificate chain."""
    key: bytes
    """PEM of the key."""
    ca: bytes | None
    """PEM of the authorities."""
    context: ssl.SSLContext
    """For servers that take a context of the standard library; asks clients for no certificate."""


class Certificates:
    """The current content of the files; may be asked from any thread.

    Args:
        files: where they are.

    Raises:
        ConfigError: they cannot be used at the start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        paths = [files.cert, files.key, *([files.ca] if files.ca is not None else [])]
        self._watch = FileWatch(*paths)
        self._material = _read(files)

    def current(self) -> TlsMaterial:
        """What new connections use; the same object until the files change."""
        with self._lock:
            if self._watch.changed():
                try:
                    self._material = _read(self._files)
                except ConfigError as error:
                    _log.warning("certificates not reloaded; the last stay", why=error.message)
                else:
                    _log.info("certificates reloaded", cert=str(self._files.cert))
            return self._material


def tls_files(
    *, cert: Path | None, key: Path | None, ca: Path | None = None, setting: str = "tls"
) -> TlsFiles | None:
    """The files as settings name them, or None when no certificate is set.

    Raises:
        ConfigError: some are set and others missing.
    """
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None:
        raise ConfigError(
            f"{setting}_cert and {setting}_key belong together: one of them is missing; set both",
            param=f"{setting}_cert",
        )
    return TlsFiles(cert=cert, key=key, ca=ca)


def mutual_tls_files(
    *, cert: Path | None, key: Path | None, ca: Path | None, setting: str = "tls"
) -> TlsFiles | None:
    """The files of a side that both shows a certificate and asks for one; None when none is set.

    Raises:
        ConfigError: some are set and others missing.
    """
    files = tls_files(cert=cert, key=key, ca=ca, setting=setting)
    if files is not None and files.ca is None:
        raise ConfigError(
            f"{setting}_ca is missing: between roles both sides show a certificate, and it says "
            f"whose are accepted; set it beside {setting}_cert and {setting}_key",
            param=f"{setting}_ca",
        )
    return files


def mutual_certificates(
    *, cert: Path | None, key: Path | None, ca: Path | None, setting: str = "tls"
) -> Certificates | None:
    """The certificates of such a side, read now; None when none is set.

    Raises:
        ConfigError: some are set and others missing, or they cannot be used.
    """
    files = mutual_tls_files(cert=cert, key=key, ca=ca, setting=setting)
    return None if files is None else Certificates(files)


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """A context whose every handshake uses the current certificate."""
    base = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def choose(connection: ssl.SSLObject, _name: str | None, _base: ssl.SSLContext) -> None:
        connection.context = certificates.current().context

    base.sni_callback = choose  # called in every handshake, with no name when the client sent none
    return base


def _read(files: TlsFiles) -> TlsMaterial:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        cert, key = files.cert.read_bytes(), files.key.read_bytes()
        ca = None if files.ca is None else files.ca.read_bytes()
        # An encrypted key would otherwise ask for its password on the terminal.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        named = ", ".join(str(path) for path in (files.cert, files.key, files.ca) if path)
        raise ConfigError(
            f"the certificate files {named} cannot be used ({error}): one is missing, is not PEM, "
            "is encrypted, or the key belongs to another certificate; correct the paths or files"
        ) from error
    return TlsMaterial(cert=cert, key=key, ca=ca, context=context)

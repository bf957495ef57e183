"""Certificates of throw-away authorities, as files that servers read."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Identity:
    """Three PEM files of one side."""

    cert: Path
    key: Path
    ca: Path


class Authority:
    """A certificate authority and the identities that it issued."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def issue(self, folder: Path, *names: str) -> Identity:
        """Writes an identity for `names`; the files of an earlier one are replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        issued = self._ca.issue_cert(*(names or ("127.0.0.1", "localhost")))
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        files = {"cert.pem": chain, "key.pem": issued.private_key_pem.bytes(), "ca.pem": self.pem}
        for name, content in files.items():
            new = folder / f"{name}.new"
            new.write_bytes(content)
            new.replace(folder / name)
        return Identity(cert=folder / "cert.pem", key=folder / "key.pem", ca=folder / "ca.pem")

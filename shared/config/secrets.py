"""Settings as they may be shown: in logs, tables and reports."""

from urllib.parse import urlsplit


def mask_secret(text: str) -> str:
    """Hides the password of a URL."""
    password = urlsplit(text).password if "://" in text else None
    return text.replace(f":{password}@", ":***@") if password else text

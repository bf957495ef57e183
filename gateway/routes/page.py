"""GET / and the files of the page, under a policy that lets nothing else in."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.page.assets import Asset, PageAssets

PAGE = "/"
PAGE_FILES = "/page/{version}/{name}"

_NOT_FOUND = 404
_NOT_MODIFIED = 304

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy: own files only, nothing inline, no frames, no strings as code."""

_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_UNTIL_CHANGED = "public, max-age=31536000, immutable"


class PageRoutes:
    """The page; it holds no data of its own, so it needs no key.

    Args:
        assets: its files.
    """

    def __init__(self, assets: PageAssets) -> None:
        self._assets = assets
        self._etag = f'"{assets.version}"'

    async def index(self, request: Request) -> Response:
        """The document, asked for anew at each visit."""
        headers = {**_HEADERS, "cache-control": "no-cache", "etag": self._etag}
        if request.headers.get("if-none-match") == self._etag:
            return Response(status_code=_NOT_MODIFIED, headers=headers)
        return _answer(self._assets.index, headers)

    async def file(self, request: Request) -> Response:
        """A file of this version, to be kept for ever.

        Raises:
            HTTPException: 404 for another version or name.
        """
        asset = self._assets.files.get(request.path_params["name"])
        if asset is None or request.path_params["version"] != self._assets.version:
            raise HTTPException(_NOT_FOUND)
        return _answer(asset, {**_HEADERS, "cache-control": _UNTIL_CHANGED})


def _answer(asset: Asset, headers: dict[str, str]) -> Response:
    return Response(asset.content, headers={**headers, "content-type": asset.media_type})

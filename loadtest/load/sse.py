"""Server-sent events out of bytes, wherever they are cut (WHATWG HTML, section 9.2)."""

_BOM = b"\xef\xbb\xbf"


class SseReader:
    """Reads one stream; keeps what is not complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False
        self._first = True

    def feed(self, data: bytes) -> list[str]:
        """The data of every event that is complete now; comments and other fields are dropped.

        Raises:
            UnicodeDecodeError: an event is not UTF-8.
        """
        events = []
        for line in self._lines(data):
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data).decode())
                self._data = []
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        if self._after_return and data:
            data = data.removeprefix(b"\n")
            self._after_return = False
        self._after_return = self._after_return or data.endswith(b"\r")
        text = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        if lines and self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

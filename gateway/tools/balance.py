"""Where a JSON object ends, character by character."""


class Balance:
    """Counts braces and brackets outside strings, from the object's first brace on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def closes(self, char: str) -> bool:
        """Takes the next character; whether it ends the object."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False

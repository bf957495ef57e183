"""What the endpoints of conversations take, whatever they call the turns."""

from typing import Any

from gateway.schema.generation import GenerationBody

TEMPLATE_VARIABLES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
"""Template variables that a client may set; others could break the prompt's structure."""


def allowed_variables(given: dict[str, Any]) -> dict[str, Any]:
    """Those of the client's template variables that the template may see."""
    return {name: value for name, value in given.items() if name in TEMPLATE_VARIABLES}


class ConversationBody(GenerationBody):
    """A request that a chat template turns into a prompt."""

    chat_template_kwargs: dict[str, Any] | None = None

    def effort(self) -> str | None:
        """How much the model shall think."""
        raise NotImplementedError

    def template_variables(self) -> dict[str, Any]:
        """Variables for the chat template."""
        given = dict(self.chat_template_kwargs or {})
        effort = self.effort()
        if effort is not None:
            given.setdefault("reasoning_effort", effort)
        return allowed_variables(given)

    def without_effect(self) -> list[str]:
        """Template variables that are not allowed."""
        given = self.chat_template_kwargs or {}
        return [f"chat_template_kwargs.{name}" for name in given if name not in TEMPLATE_VARIABLES]

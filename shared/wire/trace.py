"""Traces on the wire; ranges travel as one flat list of starts and ends."""

from collections.abc import Iterable

from protos.tandem.v1 import common_pb2, inference_pb2
from shared.types.handoff_trace import HandoffTrace, KvBlock, KvPush
from shared.types.trace import (
    LayoutTrace,
    PageStep,
    PageTrace,
    PromptTrace,
    Ranges,
    RequestTrace,
    WatchedLayer,
    WaterfallBar,
)


def prompt_trace_to_pb(trace: PromptTrace) -> common_pb2.PromptTrace:
    """Converts the kept tokens."""
    return common_pb2.PromptTrace(
        prompt_tokens=trace.prompt_tokens,
        column_tokens=trace.column_tokens,
        score=trace.score,
        layouts=[
            common_pb2.LayoutTrace(
                layers=layout.layers,
                kept_tokens=layout.kept_tokens,
                share=layout.share,
                spans=None if layout.spans is None else _flat(layout.spans),
            )
            for layout in trace.layouts
        ],
        handoff=None if trace.handoff is None else _handoff_to_pb(trace.handoff),
    )


def prompt_trace_from_pb(message: common_pb2.PromptTrace) -> PromptTrace:
    """Converts the kept tokens; nothing in it is refused, since it is only shown."""
    return PromptTrace(
        prompt_tokens=message.prompt_tokens,
        column_tokens=message.column_tokens,
        score=tuple(message.score) or None,
        layouts=tuple(
            LayoutTrace(
                layers=tuple(layout.layers),
                kept_tokens=layout.kept_tokens,
                share=tuple(layout.share),
                spans=_pairs(layout.spans) or None,
            )
            for layout in message.layouts
        ),
        handoff=_handoff_from_pb(message.handoff) if message.HasField("handoff") else None,
    )


def page_trace_to_pb(trace: PageTrace) -> common_pb2.PageTrace:
    """Converts the reads."""
    return common_pb2.PageTrace(
        policy=trace.policy,
        column_slots=trace.column_slots,
        columns=trace.columns,
        total_steps=trace.total_steps,
        stride=trace.stride,
        layers=[
            common_pb2.WatchedLayer(
                layer=each.layer, role=each.role, prompt_slots=each.prompt_slots
            )
            for each in trace.layers
        ],
        steps=[_step_to_pb(step) for step in trace.steps],
    )


def page_trace_from_pb(message: common_pb2.PageTrace) -> PageTrace:
    """Converts the reads; nothing in it is refused, since it is only shown."""
    return PageTrace(
        policy=message.policy,
        column_slots=message.column_slots,
        columns=message.columns,
        total_steps=message.total_steps,
        stride=message.stride,
        layers=tuple(
            WatchedLayer(layer=each.layer, role=each.role, prompt_slots=each.prompt_slots)
            for each in message.layers
        ),
        steps=tuple(_step_from_pb(step) for step in message.steps),
    )


def request_trace_to_pb(trace: RequestTrace) -> inference_pb2.RequestTrace:
    """Converts a whole trace for clients of the public API."""
    return inference_pb2.RequestTrace(
        waterfall=[
            inference_pb2.WaterfallBar(
                hop=bar.hop, phase=bar.phase, start_seconds=bar.start_s, seconds=bar.seconds
            )
            for bar in trace.waterfall
        ],
        total_seconds=trace.total_s,
        prompt=None if trace.prompt is None else prompt_trace_to_pb(trace.prompt),
        pages=None if trace.pages is None else page_trace_to_pb(trace.pages),
    )


def request_trace_from_pb(message: inference_pb2.RequestTrace, *, ttft_s: float) -> RequestTrace:
    """Converts a whole trace; nothing in it is refused, since it is only shown.

    Args:
        message: the trace.
        ttft_s: of the report beside it, in seconds.
    """
    return RequestTrace(
        waterfall=tuple(
            WaterfallBar(
                hop=bar.hop, phase=bar.phase, start_s=bar.start_seconds, seconds=bar.seconds
            )
            for bar in message.waterfall
        ),
        ttft_s=ttft_s,
        total_s=message.total_seconds,
        prompt=prompt_trace_from_pb(message.prompt) if message.HasField("prompt") else None,
        pages=page_trace_from_pb(message.pages) if message.HasField("pages") else None,
    )


def _handoff_to_pb(trace: HandoffTrace) -> common_pb2.HandoffTrace:
    return common_pb2.HandoffTrace(
        computed=[
            common_pb2.KvBlock(
                layer=block.layer,
                first_slot=block.first_slot,
                slots=block.slots,
                seconds=block.seconds,
            )
            for block in trace.computed
        ],
        pushed=[
            common_pb2.KvPush(bytes=push.nbytes, start_seconds=push.start_s, seconds=push.seconds)
            for push in trace.pushed
        ],
        left_out=trace.left_out,
        computed_seconds=trace.computed_s,
        sealed_seconds=trace.sealed_s,
        adopted_seconds=trace.adopted_s,
    )


def _handoff_from_pb(message: common_pb2.HandoffTrace) -> HandoffTrace:
    return HandoffTrace(
        computed=tuple(
            KvBlock(
                layer=block.layer,
                first_slot=block.first_slot,
                slots=block.slots,
                seconds=block.seconds,
            )
            for block in message.computed
        ),
        pushed=tuple(
            KvPush(nbytes=push.bytes, start_s=push.start_seconds, seconds=push.seconds)
            for push in message.pushed
        ),
        left_out=message.left_out,
        computed_s=message.computed_seconds,
        sealed_s=message.sealed_seconds,
        adopted_s=message.adopted_seconds,
    )


def _step_to_pb(step: PageStep) -> common_pb2.PageStep:
    return common_pb2.PageStep(
        step=step.step,
        position=step.position,
        attended=step.attended,
        dense=step.dense,
        refreshed=step.refreshed,
        read=[common_pb2.ColumnRanges(bounds=_flat(ranges)) for ranges in step.read],
    )


def _step_from_pb(message: common_pb2.PageStep) -> PageStep:
    return PageStep(
        step=message.step,
        position=message.position,
        attended=message.attended,
        dense=message.dense,
        refreshed=tuple(message.refreshed),
        read=tuple(_pairs(ranges.bounds) for ranges in message.read),
    )


def _flat(ranges: Ranges) -> list[int]:
    return [bound for piece in ranges for bound in piece]


def _pairs(bounds: Iterable[int]) -> Ranges:
    flat = list(bounds)
    return tuple(zip(flat[::2], flat[1::2], strict=False))

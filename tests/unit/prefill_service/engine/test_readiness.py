"""What /health/ready says from the first moment to the last."""

from prefill_service.engine.readiness import ReadinessBoard
from shared.model.progress import Progress


def shown(board: ReadinessBoard) -> tuple[bool, str, float, str]:
    now = board.current
    return now.ready, now.phase, now.progress, now.detail


def test_from_start_to_drain() -> None:
    board = ReadinessBoard()
    assert shown(board) == (False, "starting", 0.0, "")
    with board.startup("loading", "weights"):
        assert shown(board) == (False, "loading", 0.0, "weights")
        board.progressed(Progress("download", 30, 120))
        assert shown(board) == (False, "loading", 0.25, "download 30/120")
        board.progressed(Progress("download", 30, 0))
        assert shown(board) == (False, "loading", 0.0, "download 30/?")
    board.serving()
    assert shown(board)[:2] == (True, "serving")
    board.stalled(10)
    assert shown(board)[:2] == (False, "failed")
    board.draining()
    assert shown(board)[:2] == (False, "draining")

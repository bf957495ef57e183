"""Files are seen to change however they change."""

from pathlib import Path

from shared.telemetry.file_watch import FileWatch


def let_its_clock_move_on(path: Path) -> None:
    """A file system's time stands still for milliseconds; what changes within looks the same."""
    probe = path.with_name("probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.touch()


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("1")
    watch = FileWatch(path)
    assert not watch.changed()
    let_its_clock_move_on(path)
    path.write_text("2")
    assert watch.changed()
    other.write_text("3")
    other.replace(path)
    assert watch.changed()
    let_its_clock_move_on(path)
    path.chmod(0o400)  # what could not be read before may be readable now
    assert watch.changed()
    path.unlink()
    assert watch.changed()
    assert not watch.changed()
    path.symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text("4")
    assert watch.changed()

"""What a worker says of its place is what the system says, or nothing."""

from pathlib import Path

from shared.transport.topology import read_topology


def test_a_worker_on_a_cpu_knows_its_machine_only(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("5b6c\n")
    place = read_topology("cpu", boot_id=boot_id)
    assert (place.host, place.gpu, place.nvlink_peers) == ("5b6c", "", ())
    assert read_topology("cpu").host == read_topology("cpu").host


def test_a_system_without_boot_ids_leaves_the_machine_open(tmp_path: Path) -> None:
    assert read_topology("cpu", boot_id=tmp_path / "absent").host == ""

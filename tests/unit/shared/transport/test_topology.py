"""What a worker says of its place is what the system says, or nothing."""

from pathlib import Path

from shared.transport.nvml import GpuLinks
from shared.transport.topology import read_topology
from shared.types.topology import Topology, joined_by_nvlink, processes_apart


def test_a_worker_on_a_cpu_knows_its_machine_and_why_it_knows_no_gpu(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("5b6c\n")
    place = read_topology("cpu", boot_id=boot_id, links=lambda _: GpuLinks(note="no driver"))
    assert (place.host, place.gpu, place.nvlink_peers) == ("5b6c", "", ())
    assert place.gpu_note == "no driver"
    here = read_topology("cpu")
    assert here == read_topology("cpu")
    assert here.gpus or here.gpu_note
    assert here.pid_namespace.isdigit()


def test_a_system_without_boot_ids_leaves_the_machine_open(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    place = read_topology("cpu", boot_id=absent, pid_namespace=absent)
    assert (place.host, place.pid_namespace) == ("", "")


def test_processes_are_apart_only_where_both_say_so() -> None:
    here = Topology(host="h", pid_namespace="1", gpu="a", nvlink_peers=("b",))
    assert processes_apart(here, Topology(host="h", pid_namespace="2"))
    for other in (
        Topology(host="h", pid_namespace="1"),
        Topology(host="h"),
        Topology(host="far", pid_namespace="2"),
        Topology(),
    ):
        assert not processes_apart(here, other)
    assert not processes_apart(Topology(), Topology())


def test_nvlink_joins_gpus_of_one_machine_and_pid_namespace() -> None:
    here = Topology(host="h", pid_namespace="1", gpu="a", nvlink_peers=("b",))
    assert joined_by_nvlink(here, Topology(host="h", gpu="b"))
    assert joined_by_nvlink(here, here)
    for other in (
        Topology(host="h", gpu="c"),
        Topology(host="h"),
        Topology(host="far", gpu="b"),
        Topology(host="h", pid_namespace="2", gpu="b"),
    ):
        assert not joined_by_nvlink(here, other)

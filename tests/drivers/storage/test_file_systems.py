"""File systems that may not create a name exactly once are recognised by what is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.drivers.storage import file_systems, local
from tidegate.drivers.storage.file_systems import (
    Mount,
    is_unsafe,
    mount_of,
    parse_mounts,
    refuse_unsafe,
)
from tidegate.drivers.storage.local import LocalStore
from tidegate.errors import RefusedError

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /data/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 22 8:3 / /data2 rw - btrfs /dev/sdc rw
34 22 0:42 / /mnt/fuse rw - fuse.sshfs sshfs#host rw
35 34 8:4 / /mnt/fuse rw - ext4 /dev/sdd rw
""".strip()


def kind_of(folder: str) -> str:
    mount = mount_of(folder, parse_mounts(MOUNTS))
    assert mount is not None
    return mount.kind


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/srv/me", "ext4"),
        ("/data", "nfs4"),
        ("/data/checkpoints", "nfs4"),
        ("/data/local/checkpoints", "xfs"),
        ("/data2/x", "btrfs"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/fuse/x", "ext4"),  # the later mount hides the earlier one
    ],
)
def test_a_folder_is_on_its_innermost_mount(folder: str, kind: str) -> None:
    assert kind_of(folder) == kind


def test_invalid_lines_of_the_mount_list_are_ignored() -> None:
    assert parse_mounts("\nnonsense\n1 2 3 - ext4\n") == []
    assert parse_mounts(MOUNTS)[1] == Mount("/data", "nfs4", "server:/export")
    assert mount_of("/", []) is None


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuse.sshfs", "fuse.s3fs", "fuseblk"]
)
def test_network_file_systems_and_unknown_fuse_are_unsafe(kind: str) -> None:
    assert is_unsafe(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fusectl"])
def test_local_file_systems_are_safe(kind: str) -> None:
    assert not is_unsafe(kind)


def test_the_probe_refuses_an_unsafe_file_system_unless_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 0:40 / {tmp_path} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(local, "refuse_unsafe", lambda folder: refuse_unsafe(folder, mounts))
    store = LocalStore(tmp_path / "store")
    with pytest.raises(RefusedError) as refused:
        store.probe()
    assert "type nfs4 (server:/export at " in str(refused.value)
    assert "checkpoint.allow_network_filesystem = true" in str(refused.value)
    assert not (tmp_path / "store").exists()
    store.probe(allow_network_filesystem=True)


def test_no_folder_is_refused_if_the_mount_list_is_absent(tmp_path: Path) -> None:
    refuse_unsafe(tmp_path, tmp_path / "absent")
    refuse_unsafe(tmp_path, file_systems.MOUNTS)

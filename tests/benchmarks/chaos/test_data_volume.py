"""A volume that is filled and made read-only, where the machine permits mounts."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos.data_volume import DataVolume


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[DataVolume]:
    volume = DataVolume(tmp_path / "volume")
    if not volume.is_limited:
        pytest.skip("this process has no right to mount")
    yield volume
    volume.close()


def test_full_volume_refuses_every_byte_and_is_writable_again(volume: DataVolume) -> None:
    (volume.path / "before").write_text("kept")
    with volume.full(), pytest.raises(OSError, match="No space left") as refused:
        (volume.path / "during").write_text("lost")
    assert refused.value.errno == errno.ENOSPC
    (volume.path / "after").write_text("stored")
    assert (volume.path / "before").read_text() == "kept"


def test_read_only_volume_refuses_new_files_and_keeps_open_ones_writable(volume: DataVolume) -> None:
    with (volume.path / "open").open("w") as file:
        with volume.read_only():
            with pytest.raises(OSError, match="Read-only") as refused:
                (volume.path / "during").write_text("lost")
            assert refused.value.errno == errno.EROFS
            file.write("written")
        file.write(" and closed")
    assert (volume.path / "open").read_text() == "written and closed"
    (volume.path / "after").write_text("stored")

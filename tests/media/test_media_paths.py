"""Resolution of URIs below the media root, and files of the frame cache."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from media import MediaError, load_frames, resolve_uri
from media.media_paths import staged_files, staged_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "library"
    (root / "cooking").mkdir(parents=True)
    (root / "cooking" / "soup of the day.mp4").write_bytes(b"soup")
    (root / "100%25.mp4").write_bytes(b"percent")
    os.mkfifo(root / "pipe.mp4")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (tmp_path / "library-private").mkdir()
    (tmp_path / "library-private" / "own.mp4").write_bytes(b"own")
    return root


def test_relative_absolute_and_file_uris_resolve_to_same_file(root: Path) -> None:
    soup = root / "cooking" / "soup of the day.mp4"
    for uri in (
        "cooking/soup of the day.mp4",
        "cooking/../cooking/./soup of the day.mp4",
        str(soup),
        "file://" + str(soup).replace(" ", "%20"),
        "FILE://localhost" + str(soup).replace(" ", "%20"),
        soup.as_uri(),
    ):
        assert resolve_uri(uri, root) == soup.resolve()


@pytest.mark.parametrize(
    "uri",
    [
        "../secret.mp4",
        "cooking/../../secret.mp4",
        "../library-private/own.mp4",
        "/etc/hostname",
        "{tmp}/secret.mp4",
        "file://{tmp}/secret.mp4",
        "file://{root}/../secret.mp4",
        "file://{root}/%2e%2e/secret.mp4",
        "file:///etc/hostname",
    ],
)
def test_paths_outside_root_raise(root: Path, tmp_path: Path, uri: str) -> None:
    with pytest.raises(MediaError, match="outside the media root"):
        resolve_uri(uri.format(root=root, tmp=tmp_path), root)


def test_links_must_stay_inside_root_which_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (root / "inner.mp4").symlink_to(root / "cooking" / "soup of the day.mp4")
    (root / "outer.mp4").symlink_to(tmp_path / "secret.mp4")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop.mp4").symlink_to(root / "loop.mp4")
    assert resolve_uri("inner.mp4", root).name == "soup of the day.mp4"
    for uri in ("outer.mp4", "folder/secret.mp4"):
        with pytest.raises(MediaError, match="outside the media root"):
            resolve_uri(uri, root)
    with pytest.raises(MediaError):
        resolve_uri("loop.mp4", root)
    link = tmp_path / "link"
    link.symlink_to(root)
    assert resolve_uri("100%25.mp4", link) == (root / "100%25.mp4").resolve()
    assert resolve_uri(f"{link}/100%25.mp4", link) == (root / "100%25.mp4").resolve()


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "not a path"),
        ("soup\0.mp4", "not a path"),
        ("file:///soup%00.mp4", "not a path"),
        ("file://", "not a path"),
        ("file://server/share/soup.mp4", "another machine"),
        ("file:///soup.mp4?start=3", "write %3F or %23"),
        ("file:///soup.mp4#t=3", "write %3F or %23"),
        ("concat:soup.mp4|soup.mp4", "not a file below"),
        ("pipe:0", "not a file below"),
        ("http://example.org/soup.mp4", "not a local file"),
        ("rtsp://camera/1", "not a local file"),
        ("concat://a.mp4", "not a local file"),
        ("cooking", "not a file below"),
        ("missing.mp4", "not a file below"),
        ("pipe.mp4", "not a file below"),
        ("x" * 5000, "not a path"),
        ("file:///%ff.mp4", "not a path"),
        ("file://[/soup.mp4", "not a path"),
        ("\ud800.mp4", "not a path"),
        ("\udcff.mp4", "not valid Unicode"),
    ],
)
def test_uris_without_file_raise(root: Path, uri: str, words: str) -> None:
    with pytest.raises(MediaError, match=words) as caught:
        resolve_uri(uri, root)
    assert caught.value.reason == str(caught.value)
    assert str(root) not in caught.value.reason


def test_load_frames_returns_written_frames_and_rejects_others(tmp_path: Path) -> None:
    frames = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "good.npy", frames)
    assert np.array_equal(load_frames(tmp_path / "good.npy"), frames)
    np.save(tmp_path / "floats.npy", frames.astype(np.float32))
    np.save(tmp_path / "flat.npy", frames[0])
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "torn.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:-5])
    for name in ("floats", "flat", "objects", "empty", "torn", "gone"):
        with pytest.raises(MediaError, match=rf"{name}\.npy") as caught:
            load_frames(tmp_path / f"{name}.npy")
        assert str(tmp_path) not in caught.value.reason


def test_staged_file_belongs_to_one_process_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines share the folder, and processes on two of them may have the same ID."""
    staged = staged_path(tmp_path / "video.jpg", 40)
    staged.touch()
    assert staged_files(40, tmp_path) == [staged]
    assert staged_files(4, tmp_path) == []
    other = SimpleNamespace(nodename="prober2")
    monkeypatch.setattr(os, "uname", lambda: other)
    assert staged_path(tmp_path / "video.jpg", 40) != staged
    assert staged_files(40, tmp_path) == []

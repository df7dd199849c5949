"""Send corrupted media files through the probing worker: ``python -m benchmarks.hostile.hostile_media``.

Valid videos with sound and pictures are damaged, or made to lie. The probing worker's job runs in this process, on its
own library with SQLite and without a broker, and the sound tracks of accepted files are read. Decoder and reader
processes have the product's limits. The report counts the outcomes of each kind, and everything that must not happen:
exceptions in the worker, connections from a decoder, and files outside the data folder.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import socketserver
import struct
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import av
import numpy as np
from sqlalchemy import select

from benchmarks.reporting.markdown_tables import write_json
from cinestrata_schemas.tasks import TaskSpec
from media.reading import VideoReader
from media.video_limits import VideoLimits
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Video
from service.core.settings import settings
from service.library.deletion import delete_task
from service.tasks import commands, lifecycle, probing

_WIDTH, _HEIGHT, _FRAMES = 96, 72, 12
_SAMPLES = 48_000  # of sound, one second
# name → container, codec, pixel format, codec of the sound
_ENCODINGS = {
    "mp4": ("mp4", "libx264", "yuv420p", "aac"),
    "mov": ("mov", "mpeg4", "yuv420p", "pcm_s16le"),
    "mkv": ("matroska", "libx264", "yuv420p", "flac"),
    "webm": ("webm", "libvpx", "yuv420p", "libopus"),
    "avi": ("avi", "mjpeg", "yuvj420p", "mp2"),
    "ts": ("mpegts", "mpeg2video", "yuv420p", "mp2"),
    "gif": ("gif", "gif", "rgb8", None),
    "flv": ("flv", "flv", "yuv420p", "aac"),
}
_BOXES = (b"moov", b"mvhd", b"trak", b"tkhd", b"mdhd", b"stsd", b"stts", b"stsz", b"stsc", b"stco", b"mdat")
_HUGE = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1_000_000_000, 100_000)
_FOREIGN_FILE = "/etc/passwd"


class Bases(NamedTuple):
    """Valid files by format name, and the URL of a local server that no decoder must connect to."""

    files: Mapping[str, bytes]
    address: str


Corruption = Callable[[random.Random, Bases], bytes]


def valid_files() -> dict[str, bytes]:
    """Encode small valid files by format name: moving and audible noise, for which every decoder has to work."""
    picture = np.random.default_rng(0).integers(0, 255, (_HEIGHT, _WIDTH, 3), dtype=np.uint8)
    return {name: _encode(picture, *encoding) for name, encoding in _ENCODINGS.items()}


def _encode(picture: np.ndarray, container: str, codec: str, pixels: str, sound: str | None) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=12)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, pixels
        track: Any = output.add_stream(sound, rate=_SAMPLES, layout="mono") if sound else None
        for shift in range(_FRAMES):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 5 * shift, axis=1), format="rgb24")
            output.mux(stream.encode(frame.reformat(format=pixels)))
        output.mux(stream.encode(None))
        if track:
            noise = np.random.default_rng(1).integers(-20_000, 20_000, (1, _SAMPLES), dtype=np.int16)
            samples = av.AudioFrame.from_ndarray(noise, "s16", "mono")
            samples.sample_rate, samples.pts, samples.time_base = _SAMPLES, 0, Fraction(1, _SAMPLES)
            output.mux(track.encode(samples))
            output.mux(track.encode(None))
    return file.getvalue()


def _flip_bits(dice: random.Random, bases: Bases, powers: int = 8, end: int = sys.maxsize) -> bytes:
    """Flip up to 2^(powers − 1) bits before an end."""
    content = bytearray(_any(dice, bases))
    for _ in range(2 ** dice.randrange(powers)):
        content[dice.randrange(min(len(content), end))] ^= 1 << dice.randrange(8)
    return bytes(content)


def _truncate(dice: random.Random, bases: Bases) -> bytes:
    content = _any(dice, bases)
    return content[: dice.randrange(1, len(content))]


def _splice(dice: random.Random, bases: Bases) -> bytes:
    """Join parts of two files, or repeat, remove or overwrite a part."""
    first, second = _any(dice, bases), _any(dice, bases)
    cut, other = dice.randrange(len(first)), dice.randrange(len(second))
    length = dice.randrange(1, 4096)
    return dice.choice(
        (
            first[:cut] + second[other:],
            first[:cut] + first[cut : cut + length] * dice.randrange(2, 9) + first[cut:],
            first[:cut] + first[cut + length :],
            first[:cut] + bytes([dice.choice((0, 255))]) * length + first[cut + length :],
        )
    )


def _random_bytes_after_signature(dice: random.Random, bases: Bases) -> bytes:
    head = _any(dice, bases)[: dice.randrange(4, 64)]
    return head + dice.randbytes(dice.randrange(16, 20_000))


def _lie_in_box(dice: random.Random, bases: Bases) -> bytes:
    """Change sizes, counts, durations or dimensions in an MP4 box to other values than its content's."""
    content = bytearray(bases.files[dice.choice(("mp4", "mov"))])
    for _ in range(dice.randrange(1, 4)):
        box = dice.choice(_BOXES)
        at = content.find(box)
        if at < 4:
            continue
        field = dice.choice((-4, *range(4, 40, 4)))
        struct.pack_into(">I", content, min(at + field, len(content) - 4), dice.choice(_HUGE))
    return bytes(content)


def _lie_about_frame_count(dice: random.Random, bases: Bases) -> bytes:
    """Make an MP4's tables, or an AVI's header, state a billion frames."""
    if dice.random() < 0.3:
        content = bytearray(bases.files["avi"])
        struct.pack_into("<I", content, content.find(b"avih") + 24, 1_000_000_000)
        struct.pack_into("<I", content, content.find(b"strh") + 40, dice.choice((1_000_000_000, 0xFFFFFFFF)))
        return bytes(content)
    content = bytearray(bases.files["mp4"])
    struct.pack_into(">II", content, content.find(b"stts") + 8, 1, 1_000_000_000)
    struct.pack_into(">I", content, content.find(b"stts") + 16, dice.choice((1, 0x7FFFFFFF)))
    if dice.random() < 0.5:
        # With one size for all of a billion samples, no table is needed.
        struct.pack_into(">II", content, content.find(b"stsz") + 8, dice.randrange(1, 99), 1_000_000_000)
    return bytes(content)


def _lie_about_size(dice: random.Random, bases: Bases) -> bytes:
    """State up to 100,000 x 100,000 pixels in the header of a container, a frame, or a picture."""
    side = dice.choice((100_000, 65_535, 32_768, 16_000, 12_000, 9_000))
    word = min(side, 65_535)
    kind = dice.choice(("mp4", "avi", "frames", "gif", "png", "bmp"))
    if kind == "png":
        return _png(side, dice.choice((b"", zlib.compress(bytes(100_000)))))
    if kind == "bmp":
        header = struct.pack("<IIIIiiHHII", 0, 0, 54, 40, side, side, 1, 24, 0, 0)
        return b"BM" + header + bytes(dice.randrange(16, 4096))
    content = bytearray(bases.files["avi" if kind == "frames" else kind])
    content[-1] ^= dice.randrange(256)  # otherwise, files would be copies of each other
    if kind == "mp4":
        fixed = (side << 16) & 0xFFFFFFFF
        struct.pack_into(">II", content, content.find(b"tkhd") + 80, fixed, fixed)
        struct.pack_into(">HH", content, content.find(b"avc1") + 28, word, word)
    elif kind == "avi":
        struct.pack_into("<II", content, content.find(b"avih") + 40, side, side)
        struct.pack_into("<ii", content, content.find(b"strf") + 12, side, side)
    elif kind == "frames":
        at = content.find(b"\xff\xc0")  # the size in each JPEG
        while at >= 0:
            struct.pack_into(">HH", content, at + 5, word, word)
            at = content.find(b"\xff\xc0", at + 1)
    else:
        struct.pack_into("<HH", content, 6, word, word)
        if dice.random() < 0.5:
            struct.pack_into("<HH", content, content.find(b",", 13) + 5, word, word)
    return bytes(content)


def _png(side: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _endless_gif(dice: random.Random, bases: Bases) -> bytes:
    """Build a GIF with up to 50,000 frames that repeats forever, of one pixel or a large screen, without an end."""
    side = dice.choice((1, 1, 16, 4000))
    frames = dice.randrange(1000, 50_000) if side < 100 else dice.randrange(50, 400)
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    head += b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"
    frame = b"!\xf9\x04\x04" + struct.pack("<H", dice.choice((0, 1, 65_535))) + b"\0\0"
    frame += b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\0"
    return head + frame * frames + dice.choice((b"", b";", b"!\xf9"))


def _polyglot(dice: random.Random, bases: Bases) -> bytes:
    """Build a file that begins like another format, or a format that names other files or hosts."""
    video = _any(dice, bases)
    secret, host = f"file://{_FOREIGN_FILE}", bases.address
    return dice.choice(
        (
            b"GIF89a/*" + video + b"*/=1;alert(1)",
            b"%PDF-1.7\n" + video,
            b"PK\x03\x04" + video,
            video + b"PK\x05\x06" + bytes(18),
            b"<!doctype html><script>alert(1)</script>" + video,
            b"\x7fELF" + video,
            b"#!/bin/sh\ntouch /tmp/owned\n" + video,
            f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{dice.choice((secret, host))}\n".encode(),
            f"ffconcat version 1.0\nfile '{dice.choice((_FOREIGN_FILE, secret, host))}'\n".encode(),
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {dice.randrange(1024, 9999)} "
            "RTP/AVP 96\na=rtpmap:96 H264/90000\n".encode(),
            f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "{secret}">]><MPD><BaseURL>&e;{host}</BaseURL>'
            "</MPD>".encode(),
            f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{dice.choice((secret, host))}"/></svg>'.encode(),
            f"push graphic-context\nimage over 0,0 0,0 '{host}'\n".encode(),
        )
    )


def _any(dice: random.Random, bases: Bases) -> bytes:
    return bases.files[dice.choice(sorted(bases.files))]


# Name → share of the inputs, and the function. Kinds that cost seconds each have small shares.
KINDS: dict[str, tuple[float, Corruption]] = {
    "bit flips": (0.30, _flip_bits),
    "bit flips in the header": (0.15, partial(_flip_bits, powers=5, end=600)),
    "truncation": (0.15, _truncate),
    "spliced parts": (0.12, _splice),
    "random bytes after a signature": (0.06, _random_bytes_after_signature),
    "lying boxes": (0.08, _lie_in_box),
    "a billion frames": (0.03, _lie_about_frame_count),
    "100,000 x 100,000 pixels": (0.04, _lie_about_size),
    "endless GIF": (0.01, _endless_gif),
    "polyglots and playlists": (0.06, _polyglot),
}


_BATCH = 250  # files per task
# Part of a rejection's reason → outcome. The first match counts.
_OUTCOMES = (
    ("crashed the decoder", "decoder process ended"),
    ("took longer than", "time limit"),
    ("too much memory", "memory limit"),
    ("more than", "pixel limit"),
    ("at most", "duration or size limit"),
    ("same content as", "copy of another input"),
)


def run(inputs: int, seed: int) -> dict[str, object]:
    """Probe corrupted files, the same for a seed, and report outcomes by kind, violations as sentences, and costs."""
    with tempfile.TemporaryDirectory(prefix="cinestrata-hostile-") as temporary:
        root = Path(temporary)
        for name in ("data", "temp", "home"):
            (root / name).mkdir()
        environment = {
            "CINESTRATA_DATA_DIR": str(root / "data"),
            "CINESTRATA_BACKBONE": "tiny",
            "CINESTRATA_LOG_LEVEL": "ERROR",
            "TMPDIR": str(root / "temp"),
            "HOME": str(root / "home"),
        }
        with patch.dict(os.environ, environment), patch.object(tempfile, "tempdir", None):
            dispose()
            settings.cache_clear()
            try:
                return _probe_all(root, inputs, seed)
            finally:
                dispose()
                settings.cache_clear()


def _probe_all(root: Path, inputs: int, seed: int) -> dict[str, object]:
    upgrade(settings())
    dice = random.Random(seed)
    files = valid_files()
    names, shares = list(KINDS), [share for share, _ in KINDS.values()]
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in (*names, "valid files")}
    violations, sounds = list[str](), Counter[str]()
    started = time.monotonic()
    # Otherwise, a worker that rejects everything would pass. Libraries imported now write to their own caches.
    valid = [("valid files", content) for content in files.values()]
    with VideoReader() as reader:
        _probe_batch("valid", valid, outcomes, reader, Counter())
    before = _outside_files(root)
    kinds = dice.choices(names, shares, k=inputs)
    with _connections() as (address, connections), VideoReader() as reader:
        bases = Bases(files, address)
        for first in range(0, inputs, _BATCH):
            batch = [(kind, KINDS[kind][1](dice, bases)) for kind in kinds[first : first + _BATCH]]
            try:
                violations += _probe_batch(f"batch-{first}", batch, outcomes, reader, sounds)
            except Exception:
                violations.append(f"the worker raised after input {first}: {traceback.format_exc(limit=3)}")
            print(
                f"{min(first + _BATCH, inputs)} of {inputs}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    violations += [f"a decoder opened a connection from {peer}" for peer in connections]
    outside = sorted(_outside_files(root) - before)
    violations += [f"{path.relative_to(root)} was written outside the data folder" for path in outside]
    if rejected := [kind for kind in outcomes["valid files"] if kind != "accepted"]:
        violations.append(f"valid files were not accepted: {rejected}")
    total = sum((outcomes[kind] for kind in names), Counter())
    columns = ("accepted", "rejected", *(name for _, name in reversed(_OUTCOMES)))
    return {
        "inputs": inputs,
        "seed": seed,
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "violations": violations,
        "columns": ["inputs", *columns, "violations"],
        "rows": [[inputs, *(total[name] for name in columns), len(violations)]],
        "sounds": dict(sounds),
        "seconds": round(time.monotonic() - started),
        "peak_worker_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _probe_batch(
    name: str,
    files: list[tuple[str, bytes]],
    outcomes: dict[str, Counter[str]],
    reader: VideoReader,
    sounds: Counter[str],
) -> list[str]:
    """Probe files as one task, read the sound of accepted ones, and count the outcomes of both; returns violations."""
    folder = settings().media_root / name
    folder.mkdir(parents=True)
    for number, (_, content) in enumerate(files):
        (folder / f"{number}.mp4").write_bytes(content)
    videos = [{"uri": f"{name}/{number}.mp4", "id": f"{name}-{number}"} for number in range(len(files))]
    task = commands.create_task(TaskSpec.model_validate({"name": name, "videos": videos})).task.id
    claim = lifecycle.claim_probing(task, "hostile")
    if claim is None:
        raise RuntimeError(f"task {task} cannot be claimed")
    violations = []
    with claim:  # records an exception as the task's failure
        try:
            probing.probe(claim)
        except Exception:
            violations.append(f"the worker raised: {traceback.format_exc(limit=3)}")
            raise
    with session_scope() as session:
        rows = session.scalars(select(Video).where(Video.task_id == task)).all()
    for row in rows:
        kind, content = files[int(row.id.rsplit("-", 1)[1])]
        outcomes[kind][_outcome(row.status, row.reason)] += 1
        if row.status == "pending":
            violations.append(f"an input ({kind}) has no result")
        facts = (row.width or 0, row.height or 0, row.frames or 0, row.duration or 0.0)
        if row.status == "accepted" and not _is_plausible(*facts, len(content)):
            violations.append(f"an accepted input ({kind}) states width, height, frames, seconds {facts}")
        if row.status == "accepted":
            reading = reader.read(settings().media_root / row.uri, ["speech"])["speech"]
            sounds["not read" if reading.failed else reading.note or "read"] += 1
    for number in range(len(files)):
        (folder / f"{number}.mp4").unlink()
    if commands.get_task(task).state not in ("ready", "failed", "cancelled"):
        commands.cancel_task(task)
    delete_task(task)
    return violations


def _is_plausible(width: int, height: int, frames: int, seconds: float, size: int) -> bool:
    """Check that a video's stored facts are within the limits, and possible for a file of this size in bytes."""
    limits = VideoLimits()
    return (
        0 < width * height <= limits.max_pixels and 0 <= seconds <= limits.max_seconds and 0 < frames <= size
    )


def _outside_files(root: Path) -> set[Path]:
    """Find the files below the root that are not in the data folder."""
    return {path for path in root.rglob("*") if path != root / "data" and root / "data" not in path.parents}


def _outcome(status: str, reason: str | None) -> str:
    if status != "rejected":
        return status
    return next((name for part, name in _OUTCOMES if part in (reason or "")), "rejected")


@contextmanager
def _connections() -> Iterator[tuple[str, list[str]]]:
    """Serve on a local URL, which playlists among the inputs name; yields it and the peers that connect."""
    peers: list[str] = []

    class Recorder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            peers.append(str(self.client_address))

    with socketserver.TCPServer(("127.0.0.1", 0), Recorder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/video.mp4", peers
        finally:
            server.shutdown()
            thread.join()


def main() -> int:
    """Run the harness, write its report as JSON, and print it. Returns 1 if there are violations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("hostile-media.json"))
    arguments = parser.parse_args()
    report = run(arguments.inputs, arguments.seed)
    write_json(arguments.out, report)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())

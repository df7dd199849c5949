"""Media types of video files, from what the decoder found in them.

The tables of machines differ, and browsers go by the type: Firefox plays no ``video/quicktime``, although most of these
files contain the streams of an MP4.
"""

from __future__ import annotations

from pathlib import PurePath

from media.video_limits import VIDEO_FORMATS

# By FFmpeg's name for the container.
_TYPES = {
    "mov": "video/quicktime",
    "matroska": "video/x-matroska",
    "avi": "video/x-msvideo",
    "gif": "image/gif",
    "apng": "image/apng",
    "mpegts": "video/mp2t",
    "mpeg": "video/mpeg",
    "mpegvideo": "video/mpeg",
    "flv": "video/x-flv",
    "asf": "video/x-ms-wmv",
    "ogg": "video/ogg",
}
# Types of these containers with codecs (or decoders, by FFmpeg's names) that an MP4 or a WebM may contain.
_AV1 = ("av1", "libdav1d")
_MP4_CODECS = ("h264", "hevc", "vp9", "mpeg4", "mpeg2video", "h263", "mjpeg", *_AV1)
_WEB_TYPES = {"mov": ("video/mp4", _MP4_CODECS), "matroska": ("video/webm", ("vp8", "vp9", *_AV1))}


def media_type(name: str, container: str | None, codec: str | None) -> str:
    """Return a video file's media type; without a container and a codec, that of most files with such a name."""
    if container is None:
        suffix = PurePath(name).suffix.lower()
        container = next(
            (names.split(",")[0] for names, known in VIDEO_FORMATS.items() if suffix in known), ""
        )
    web_type, codecs = _WEB_TYPES.get(container, ("", ()))
    if web_type and (codec is None or codec in codecs):
        return web_type
    return _TYPES.get(container, "application/octet-stream")

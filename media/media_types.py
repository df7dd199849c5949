"""Media types of video files, from what the decoder found in them.

The types that a machine registers for suffixes differ, and browsers go by the type: Firefox plays no
``video/quicktime``, although most of these files contain the streams of an MP4.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from media.video_limits import VIDEO_FORMATS

# Streams that make a QuickTime file an MP4, and a Matroska file a WebM, by FFmpeg's names for codecs and decoders.
_MP4_CODECS = {"h264", "hevc", "av1", "libdav1d", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "h263", "mjpeg"}
_WEBM_CODECS = {"vp8", "vp9", "av1", "libdav1d"}
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


def media_type(name: str, container: str | None, codec: str | None) -> str:
    """Return the media type of a video file.

    Args:
        name: Name of the file; its suffix decides for a file that was not probed.
        container: Container by FFmpeg's name, or None.
        codec: Codec of the video stream by FFmpeg's name; None counts as one that browsers play.
    """
    if container is None:
        suffix = PurePosixPath(name).suffix.lower()
        found = [names for names, suffixes in VIDEO_FORMATS.items() if suffix in suffixes]
        container = found[0].split(",")[0] if found else ""
    if container == "mov" and (codec is None or codec in _MP4_CODECS):
        return "video/mp4"
    if container == "matroska" and (codec is None or codec in _WEBM_CODECS):
        return "video/webm"
    return _TYPES.get(container, "application/octet-stream")

"""Containers of accepted videos, and the endings of their files."""

from __future__ import annotations

__all__ = ["VIDEO_FORMATS", "VIDEO_SUFFIXES"]

# Containers that contain their video, by the names of FFmpeg. Playlists and scripts (HLS, DASH, concat, SDP …) name
# other files and are not accepted.
VIDEO_FORMATS: dict[str, tuple[str, ...]] = {
    "mov,mp4,3gp,3g2,mj2": (".mp4", ".m4v", ".mov", ".qt", ".f4v", ".3gp", ".3g2", ".mj2"),
    "matroska,webm": (".mkv", ".mk3d", ".webm"),
    "avi": (".avi", ".divx"),
    "gif": (".gif",),
    "apng": (".apng",),  # also in .png, which are mostly pictures
    "mpegts": (".ts", ".mts", ".m2ts"),
    "mpeg,mpegvideo": (".mpg", ".mpeg", ".mpe", ".m1v", ".m2v", ".vob"),
    "flv": (".flv",),
    "asf": (".wmv", ".asf"),
    "ogg": (".ogv",),  # .ogg files are mostly audio
    "ivf": (".ivf",),
    "nut": (".nut",),
    "mxf": (".mxf",),
    "dv": (".dv",),
    "rm": (".rm", ".rmvb"),
    "h264": (".h264", ".264"),
    "hevc": (".hevc", ".h265", ".265"),
    "m4v": (),  # .m4v is mostly an MP4
    "obu": (".obu",),
    "yuv4mpegpipe": (".y4m",),
}

# Files that a listing of a folder, bucket or archive takes for videos. A manifest may name files with any ending.
VIDEO_SUFFIXES = frozenset(suffix for suffixes in VIDEO_FORMATS.values() for suffix in suffixes)

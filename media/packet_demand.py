"""Packets of a stream that contain the frames on display at given times.

A decoder may skip the frame of any other packet if no frame refers to it, which leaves all other frames unchanged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from av.packet import Packet

__all__ = ["packets_with_demand"]

_REACH = 16  # packets before and after a packet that are compared with it: the longest reordering of H.264


def packets_with_demand(
    packets: Iterable[Packet], times: Sequence[float], start: int, base: float
) -> Iterator[tuple[Packet, bool]]:
    """Packets, each with whether its frame may be on display at one of several times.

    The frame of a packet is not needed if a frame of a near packet begins later and not after the next of the times.

    Args:
        packets: Packets in order of decoding.
        times: Ascending times in seconds since the start of the stream.
        start: Time stamp of the first frame.
        base: Seconds per unit of a time stamp.
    """
    pending: deque[tuple[Packet, float | None]] = deque()
    near: deque[float | None] = deque(maxlen=2 * _REACH + 1)
    for packet in packets:
        begins = None if packet.pts is None else (packet.pts - start) * base
        pending.append((packet, begins))
        near.append(begins)
        if len(pending) > _REACH:
            following, at = pending.popleft()
            yield following, _is_needed(at, near, times)
    for following, at in pending:
        yield following, _is_needed(at, near, times)


def _is_needed(begins: float | None, near: Iterable[float | None], times: Sequence[float]) -> bool:
    if begins is None:
        return True
    following = bisect_left(times, begins)
    if following == len(times):
        return True  # ends the search for the frame of the last time
    return not any(other is not None and begins < other <= times[following] for other in near)

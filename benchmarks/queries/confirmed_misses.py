"""Give feedback on a fifth of the searches that miss a right video, and measure what the others gain or lose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from cinestrata_schemas.feedback import FeedbackSpec
from service.library.video_feedback import give_feedback

_CONFIRMED_SHARE = 5  # one in this many searches with a missed video is confirmed


class Target(NamedTuple):
    """What a search should find.

    Attributes:
        text: Text to search for.
        right: IDs of the right videos.
        places: Number of first places that they should be in.
    """

    text: str
    right: list[str]
    places: int

    def missed(self, top: Sequence[str]) -> list[str]:
        """Find the right videos missing from a list's first places; none if all of these are right."""
        first = top[: self.places]
        if sum(video in self.right for video in first) >= min(self.places, len(self.right)):
            return []
        return sorted(set(self.right) - set(first))


def confirm_misses(targets: Sequence[Target], lists: Sequence[Sequence[str]]) -> list[int]:
    """Confirm the missed videos of some searches as one caller, and return these searches' positions.

    Args:
        lists: IDs of each search's first results.
    """
    missing = [
        number for number, (target, top) in enumerate(zip(targets, lists, strict=True)) if target.missed(top)
    ]
    confirmed = sorted(random.Random(0).sample(missing, len(missing) // _CONFIRMED_SHARE))
    for number in confirmed:
        for video in targets[number].missed(lists[number]):
            give_feedback(FeedbackSpec(text=targets[number].text, video_id=video, verdict="right"))
    return confirmed

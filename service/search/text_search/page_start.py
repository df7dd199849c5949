"""First hit of a later page: behind the last hit of the page before, which deletions move towards the front.

A cursor counts the hits of earlier pages. A server that has read the tombstones of some of them ranks the list without
them, and would leave out as many hits that no page has shown.
"""

from __future__ import annotations

from service.search.text_search.search_state import SearchState

__all__ = ["find_page_start"]


def find_page_start(state: SearchState) -> int:
    """Number of ranked hits that earlier pages have shown.

    Videos that were appended meanwhile may move hits towards the end. The page then repeats these hits, because the
    search was not deep enough for a page behind them.

    Args:
        state: Search whose hits are ranked.
    """
    cursor, count = state.request.cursor, state.offset
    if cursor is None:
        return count
    last, ids = cursor.last_hit, [hit.id for hit in state.ranked]
    if last.id in ids:
        return min(count, ids.index(last.id) + 1)
    if last.task not in state.planner.lifts:
        return 0  # with all videos of its domain; a repetition is better than an omission
    # The last hit was deleted, or passes the filter no longer: its score tells its place.
    end = state.planner.rank_key(state.planner.with_lift(last))
    return sum(state.planner.rank_key(hit) < end for hit in state.ranked[:count])

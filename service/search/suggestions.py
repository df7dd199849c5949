"""Suggest queries: words from the library's texts that complete the last word."""

from __future__ import annotations

from cinestrata_schemas.search import Suggestion, SuggestionsResponse
from index.words.text_analysis import split_words
from index.words.word_index import WordIndex
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput
from service.search.search_request import find_count_errors

MAX_SUGGESTIONS = 20


def suggest_words(words: WordIndex, q: str, k: int) -> SuggestionsResponse:
    """Find at most k words that begin with a query's last word, most frequent first.

    There is none to complete after a space or punctuation mark.

    Raises:
        InvalidInput: The query is too long, or k is out of range.
    """
    errors: list[FieldError] = []
    if len(q) > request_limits.MAX_QUERY_CHARS:
        hint = f"Use at most {request_limits.MAX_QUERY_CHARS}."
        errors.append(FieldError("q", f"The query has {len(q)} characters.", hint))
    errors += find_count_errors(k, "k", "suggestions", MAX_SUGGESTIONS)
    if errors:
        raise InvalidInput.of(errors)
    # In a hyphenated word, complete the last part, not the compound.
    last = max(
        (word for word in split_words(q) if word.end == len(q)), key=lambda word: word.start, default=None
    )
    found = words.suggest(last.term, k) if last is not None else []
    return SuggestionsResponse(suggestions=[Suggestion(text=text, count=count) for text, count in found])

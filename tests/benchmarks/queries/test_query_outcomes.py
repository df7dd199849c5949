"""Libraries of several domains, and how much of the answers of the product and its rivals is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.errors import ProtocolError
from benchmarks.queries.library_videos import (
    LibraryVideo,
    hide_videos,
    keep_first_captions,
    leave_out,
    read_domains,
)
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_rivals import (
    CONVEX,
    FULL_TEXT,
    PRODUCT,
    VISUAL,
    Bm25,
    combine,
    compare_answers,
    fit_weights,
    half_of,
    stored_text,
)
from benchmarks.queries.served_library import Answer


def test_hidden_videos_have_no_text_at_all(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    assert list(library) == ["disks", "stripes"]
    for videos in library.values():
        (hidden,) = (video for video in videos if video.is_hidden)
        assert hidden.file.name == "green-2.mp4", "the only one whose SHA-256 is a multiple of 5"
        assert [len(video.stored) for video in videos] == [0 if video.is_hidden else 3 for video in videos]
        assert stored_text(videos[0], with_names=False) == " ".join(videos[0].captions)
        assert (stored_text(hidden, with_names=False), hidden.metadata) == ("", {})
        assert "green" not in hidden.uri
        assert all((tmp_path / "media" / video.uri).is_file() for video in videos)


def test_names_are_stored_on_request_and_a_copy_is_left_out(query_folder: Path, tmp_path: Path) -> None:
    (_, *_, last) = read_domains([query_folder], tmp_path / "named", names=True)["disks"]
    assert stored_text(last, with_names=True) == "red-2 dim"
    folder = query_folder / "disks"
    (folder / "red-0.mp4").write_bytes((folder / "blue-0.mp4").read_bytes())
    library = read_domains([query_folder], tmp_path / "media")
    assert {name: len(videos) for name, videos in library.items()} == {"disks": 8, "stripes": 9}


@pytest.mark.parametrize(("share", "hidden"), [(0.05, 0), (0.5, 5), (0.9, 7)])
def test_a_share_is_hidden_by_file_name_and_a_seed_orders_the_domains(
    share: float, hidden: int, query_folder: Path, tmp_path: Path
) -> None:
    domains = read_domains([query_folder], tmp_path / "media")
    seeds = [hide_videos(domains, seed, share) for seed in range(8)]
    assert {tuple(library) for library in seeds} == {("disks", "stripes"), ("stripes", "disks")}
    ids = {frozenset(v.id for part in library.values() for v in part if v.is_hidden) for library in seeds}
    assert [len(part) for part in ids] == [2 * hidden], "the same in every seed; two videos keep captions"
    assert hide_videos(domains, 3, share) == seeds[3]


def test_variants_of_a_library(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    first = keep_first_captions(library)
    assert {video.stored for video in first["disks"]} == {
        *((video.captions[0],) for video in library["disks"] if not video.is_hidden),
        (),
    }
    remaining, left_out = leave_out(library, 0)
    assert len(remaining) == len(left_out) == 1
    assert {**remaining, **left_out} == library
    with pytest.raises(ProtocolError, match="at least two domains"):
        read_domains([query_folder], tmp_path / "selected", only=["disks"])
    with pytest.raises(ProtocolError, match=r"no domain circles; known: disks, stripes"):
        read_domains([query_folder], tmp_path / "excluded", excluded=["circles"])


VIDEOS = [
    LibraryVideo(f"v{number:02d}", "gym", "", Path("x"), "x", ("text",), {}, ("text",))
    for number in range(40)
]
QUERIES = [Query("exact", video.id, frozenset([video.id]), 1, "gym") for video in VIDEOS]
HALVES = np.array([half_of(query) for query in QUERIES])


def test_a_weight_is_fitted_on_the_other_half_of_the_videos() -> None:
    assert 10 < HALVES.sum() < 30
    right = np.eye(len(VIDEOS)) * 9
    wrong = np.roll(right, 1, axis=1)
    # BM25 finds the videos of the first half only, looks those of the second half only.
    full_text, visual = (np.where((half == HALVES)[:, None], right, wrong) for half in (0, 1))
    candidates = [0.2, 0.8]
    weights = fit_weights(
        QUERIES, VIDEOS, candidates, lambda number, weight: combine(full_text[number], visual[number], weight)
    )
    assert weights == [0.2, 0.8]
    answers = [Answer([query.text]) for query in QUERIES]
    outcomes = compare_answers(QUERIES, VIDEOS, answers, {FULL_TEXT: full_text, VISUAL: visual}, weights)
    recalls = {
        row: [outcome.values["R@1"] for outcome in outcomes if outcome.row == row]
        for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX)
    }
    assert recalls[PRODUCT] == [100.0] * len(QUERIES)
    assert recalls[CONVEX] == [0.0] * len(QUERIES), "its weights are right for the half that it was fitted on"
    assert recalls[FULL_TEXT] == pytest.approx(100.0 * (HALVES == 0))
    assert recalls[VISUAL] == pytest.approx(100.0 * (HALVES == 1))


def test_other_domains_are_not_in_the_own_gallery() -> None:
    videos = [VIDEOS[0], LibraryVideo("z", "zoo", "", Path("z"), "z", ("text",), {}, ("text",))]
    query = Query("learned", "text", frozenset({"v00"}), 1, "gym")
    scores = {FULL_TEXT: np.array([[1.0, 2.0]]), VISUAL: np.array([[0.1, 0.2]])}
    answers = [Answer(["z"], True, 0.7), Answer(["v00"], False, 0.6)]
    outcomes = compare_answers([query], videos, answers, scores, [0.5, 0.5])
    first = {(o.row, o.gallery): o.values["R@1"] for o in outcomes}
    for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX):
        assert (first[row, "all"], first[row, "own"]) == (0, 100)
    product = {o.gallery: o.values for o in outcomes if o.row == PRODUCT}
    assert (product["all"]["matches"], product["own"]["matches"]) == (100, 0)
    assert product["all"]["confidence"] == 0.7


def test_bm25_scores_rare_words_and_short_texts_higher() -> None:
    bm25 = Bm25(["a red car", "a blue car on a long road", "", "red red rose"])
    scores = bm25("Red car!")
    assert scores[0] > scores[1] > -np.inf
    assert scores[2] == -np.inf, "a video without texts is not found"
    # idf = ln(1 + 3.5 / 1.5), tf part = 2.2 / (1 + 1.2 (0.25 + 0.75 · 3 / (13 / 3)))
    assert bm25("rose")[3] == pytest.approx(np.log(1 + 3.5 / 1.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 9 / 13)))
    assert (bm25("truck") == -np.inf).all()


def test_convex_combination_of_scaled_scores() -> None:
    nothing = -np.inf
    full_text, visual = np.array([nothing, 2.0, 4.0, 9.0]), np.array([0.9, 0.1, 0.5, nothing])
    assert combine(full_text, visual, 0.0) == pytest.approx([1, 0, 0.5, nothing])
    assert combine(full_text, visual, 0.25) == pytest.approx([0.75, 0.125, 0.625, nothing])
    assert combine(full_text, visual, 1.0) == pytest.approx([0, 0.5, 1, nothing])
    assert combine(np.full(2, nothing), np.zeros(2), 0.5) == pytest.approx([0, 0])

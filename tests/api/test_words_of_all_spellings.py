"""Searches over HTTP for words of scripts without spaces, with apostrophes, compounds, phrases and emoji."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from cinestrata_schemas.videos import Cue, VideoPatch
from models.backbones.backbone import Backbone
from service.library.video_changes import edit_video
from tests.service.search.caption_library import Library, settled

# For each domain: its captions, and for queries the numbers of the clips whose texts match, in groups of equal rank,
# best first, and then what is marked in the first clip.
Found = tuple[str, str] | tuple[str, str, Sequence[str]]
THAI = "เขากำลังกินข้าวที่บ้านของฉันในกรุงเทพมหานคร"
MARKET = "นักท่องเที่ยวชาวต่างชาติกำลังเดินเล่นที่ตลาดน้ำและซื้อ"
DOMAINS: dict[str, tuple[Sequence[str], Sequence[Found]]] = {
    "thai": (
        [THAI, "มีคนทำงานบ้าง"],
        [("กินข้าว", "1", ["กินข้าว"]), ("บ้าน", "1", ["บ้าน"]), (THAI, "1", [THAI]), ("ก", "")],
    ),
    "latin within thai, and lao": (
        ["รีวิวiPhone15Proสีดำในร้าน", "ແມວນອນຢູ່ເທິງໂຕະ", "แมว\u200bนอน\u200bบน\u200bโต๊ะ"],
        [("iphone15pro", "1", ["iPhone15Pro"]), ("ແມວ", "2", ["ແມວ"]), ("แมวนอน", "3", ["แมว\u200bนอน"])],
    ),
    "characters for apostrophes": (
        [f"a dog{mark}s bowl" for mark in "'\u2019\u02bc\u00b4`\uff07"],
        [(query, "123456", None) for query in ("dog's bowl", "dogs bowl", "dog bowl", "dog\u2019s bowl")],
    ),
    "quotes and elisions": (
        [
            "the players' tunnel",
            "rock 'n' roll band",
            "'90s music video",
            "l'homme traverse la rue",
            "5'10 tall man",
        ],
        [
            ("players tunnel", "1"),
            ("rock'n'roll", "2"),
            ("90s music", "3"),
            ("homme", "4", ["homme"]),
            ("5'10", "5"),
        ],
    ),
    "words like contractions": (
        ["we'll see the shell", "a deep well", "she'll dive", "a sea shell", "it's s p a c e"],
        [("well", "2 1", ["well"]), ("shell", "14 3"), ("s", "5")],
    ),
    "other compounds": (
        [
            "ein Feuerwehrauto fährt",
            "Straßenbahn am Bahnhof",
            "two sky divers",
            "the merry go round turns",
            "F-16",
        ],
        [
            ("feuerwehr auto", "1"),
            ("straßen bahn", "2"),
            ("skydivers", "3"),
            ("merrygoround", "4"),
            ("f16", "5"),
        ],
    ),
    "flags and symbols": (
        ["final 🇩🇪 against 🇫🇷", "step 7️⃣ of 9️⃣", "our 👨‍👩‍👧‍👦 trip", "♪ intro music ♪", "weather ☀ 30℃"],
        [
            ("🇩🇪", "1", ["🇩🇪"]),
            ("🇪🇺", ""),
            ("7", "2", ["7️⃣"]),
            ("👨‍👩‍👧‍👦", "3"),
            ("♪", "4", ["♪", "♪"]),
            ("☀️", "5"),
        ],
    ),
    "burmese and khmer": (
        ["ကလေးတစ်ယောက်ဘောလုံးကန်နေတယ်", "ក្មេងប្រុសកំពុងលេងបាល់ទាត់នៅសាលារៀន"],
        [("ဘောလုံး", "1", ["ဘောလုံး"]), ("បាល់ទាត់", "2", ["បាល់ទាត់"]), ("សាលារៀន", "2", ["សាលារៀន"])],
    ),
    "long sentences": (
        [f"{MARKET}มะม่วง", f"{MARKET}ทุเรียน", "รถเมล์สาย ๕๑๑", "bus 512"],
        [("ทุเรียน", "2", ["ทุเรียน"]), ("511", "3", ["๕๑๑"]), ("๕๑๒", "4", ["512"])],
    ),
    "scripts with spaces": (
        ["एक कमल का फूल", "قطة تنام على السرير", "xe máy trên đường", "con mèo ngủ"],
        [
            ("मल", ""),
            ("طة", ""),
            ("áy", ""),
            ("mè", ""),
            ("कमल", "1", ["कमल"]),
            ("قطة", "2", ["قطة"]),
            ("máy", "3", ["máy"]),
            ("mèo", "4", ["mèo"]),
        ],
    ),
    "apostrophes": (
        ["a women's football match", "they don't stop", "O’Brien scores", "a dog bowl"],
        [
            ("womens football", "1", ["women's", "football"]),
            ("women football", "1", ["women's", "football"]),
            ("women's football", "1"),
            ("dont stop", "2", ["don't", "stop"]),
            ("don’t stop", "2"),
            ("obrien", "3", ["O’Brien"]),
            ("o'brien", "3"),
            ("dog's bowl", "4", ["dog", "bowl"]),
        ],
    ),
    "contractions": (
        [
            "we won't go",
            "I'm ready, you're not",
            "McDonald's drive-in",
            "об'єкт на дорозі",
            "D'Artagnan's sword",
        ],
        [
            ('"won\'t go"', "1", ["won't go"]),
            ("wont go", "1"),
            ('"we wont go"', "1", ["we won't go"]),
            ("im ready", "2"),
            ('"youre not"', "2", ["you're not"]),
            ("mcdonalds", "3"),
            ("mcdonald", "3"),
            ('"mcdonalds drive-in"', "3", ["McDonald's drive-in"]),
            ("обєкт", "4"),
            ("dartagnan", "5"),
            ("dartagnans sword", "5"),
        ],
    ),
    "exact apostrophes": (
        ["a dog bowl", "a dog's bowl", "a dogs bowl"],
        [("dog bowl", "1 23"), ("dog's bowl", "2 13"), ("dogs bowl", "3 12")],
    ),
    "phrases": (
        ["夜の街を歩く人", "街の夜を歩く人"],
        [(f"{quote[0]}夜の街{quote[-1]}", "1", ["夜の街"]) for quote in ('"', "“”", "「」", "『』", "＂")],
    ),
    "mixed phrases": (
        ["iPhone15で撮影した東京2020の夜景", "서울의 밤거리를 걷다"],
        [
            ('"東京2020"', "1", ["東京2020"]),
            ('"iPhone15で撮影"', "1", ["iPhone15で撮影"]),
            ('"밤거리를 걷다"', "2", ["밤거리를 걷다"]),
        ],
    ),
    "order": (
        ["new york new jersey york new", "york new york", 'a 5" screen'],
        [
            ('"new york"', "12", None),
            ('"york new"', "12", None),
            ('"new york new"', "1", ["new york new"]),
            ('"york york"', ""),
            ('"jersey new"', ""),
            ('"new jersey" "york new"', "1", ["york new jersey", "york new"]),
            ('"new york', "12"),
            ('5" screen', "3"),
        ],
    ),
    "compounds": (
        ["a red fire truck", "a red firetruck", "a red fire-truck", "a snow-board jump"],
        [
            ("fire truck", "1 23", ["fire", "truck"]),
            ("firetruck", "2 13", ["firetruck"]),
            ("fire-truck", "3 12", ["fire", "truck"]),
            ("snowboard", "4", ["snow-board"]),
            ("snow board", "4"),
            ("snow-board", "4"),
            ('"fire truck"', "13 2"),
        ],
    ),
    "accidental compounds": (
        [
            "an island in sea",
            "the rapist was jailed",
            "a therapist talks",
            "use less water",
            "a useless tool",
            "not able to run",
            "a notable run",
            "fire in the truck bed",
        ],
        [("therapist", "3"), ("useless tool", "5"), ("notable run", "7"), ("in sea", "1"), ("firetruck", "")],
    ),
    "emoji": (
        ["🔥🔥 finish line", "great goal 👍🏽", "I ❤️ dogs", "surfing 🏄🏿‍♀️ today", "a cake"],
        [
            ("🔥", "1", ["🔥", "🔥"]),
            ("👍", "2", ["👍🏽"]),
            ("👍🏽", "2", ["👍🏽"]),
            ("👍🏿", "2"),
            ("❤️", "3", ["❤️"]),
            ("❤", "3"),
            ("🏄", "4", ["🏄🏿‍♀️"]),
            ("🏄‍♀️", "4", ["🏄🏿‍♀️"]),
            ("🎂", "5", ["🎂"]),
        ],
    ),
    "glued emoji": (
        ["Happy🎂Birthday Lisa", "誕生日🎂おめでとう", "pizza🍕🍕🍕night", "a dog runs", "a dog 🐕 runs"],
        [
            ("happy birthday", "1", ["Happy", "Birthday"]),
            ("birthday", "1"),
            ("🎂", "12"),
            ("誕生日", "2", ["誕生日"]),
            ('"🎂 birthday"', "1", ["🎂Birthday"]),
            ("🍕", "3"),
            ("🍕🍕", "3"),
            ("dog", "45", ["dog"]),
            ("do\u200dg", "45"),
            ("🐕", "5"),
        ],
    ),
}
CUES = {
    "mixed phrases": "我在北京大学学习中文",
    "phrases": "a state-of-the-art up-to-date\nfifty-year-old bridge doesn’t fall, do a sit-up now please",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Iterator[TestClient]:
    """A library with each domain; the last clip of some has a transcript and no caption."""
    with settled(tmp_path_factory.mktemp("spellings"), backbone) as configured:
        library = Library(configured, backbone, "zero_shot")
        for name, (captions, _) in DOMAINS.items():
            facts: list[dict[str, Any]] = [{} for _ in captions]
            if name == "emoji":
                facts[4] = {"uri": "emoji/birthday 🎂.mp4"}
            library.add_task(name, captions, facts=facts)
        library.add_task("spoken", ["a talk", "another talk"])
        for number, text in enumerate(CUES.values()):
            edit_video(f"spoken-{number}", VideoPatch(transcript=[Cue(start=1, end=2, text=text)]))
        with TestClient(create_app(configured), base_url="http://127.0.0.1:8000") as client:
            client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
            yield client


def _search(client: TestClient, q: str, task: str) -> list[dict[str, Any]]:
    answer = client.get("/search", params={"q": q, "task": task, "k": 20})
    assert answer.status_code == 200, answer.text
    return [result for result in answer.json()["results"] if result["words"] and result["matches"]]


def _marked(text: dict[str, Any]) -> list[str]:
    return [text["text"][start:end] for start, end in text["marks"]]


@pytest.mark.parametrize(
    ("domain", "q", "expected", "marks"),
    [
        (name, *found, *[None] * (3 - len(found)))
        for name, (_, queries) in DOMAINS.items()
        for found in queries
    ],
)
def test_every_spelling_is_found_and_marked_exact_ones_first(
    client: TestClient, domain: str, q: str, expected: str, marks: Sequence[str] | None
) -> None:
    results = _search(client, q, domain)
    order = "".join(str(int(result["video_id"].rpartition("-")[2]) + 1) for result in results)
    groups, place = [], 0
    for group in expected.split():
        groups.append("".join(sorted(order[place : place + len(group)])))
        place += len(group)
    assert (" ".join(groups), len(order)) == (expected, place), order
    if marks is not None:
        assert _marked(results[0]["words"][0]) == marks


@pytest.mark.parametrize(
    ("q", "marks"),
    [
        ('"北京大学"', ["北京大学"]),
        ('"大学学习"', ["大学学习"]),
        ('"sit-up now"', ["sit-up now"]),
        ('"state of the art"', ["state-of-the-art"]),
        ('"state-of-the-art"', ["state-of-the-art"]),
        ('"up-to-date fifty-year-old"', ["up-to-date fifty-year-old"]),
        ('"bridge doesn\'t fall"', ["bridge doesn’t fall"]),
        ('"year-old bridge"', ["year-old bridge"]),
        ('"year old bridge"', ["year-old bridge"]),
    ],
)
def test_spoken_phrase_is_marked_and_played_from_its_start(
    client: TestClient, q: str, marks: Sequence[str]
) -> None:
    (found,) = _search(client, q, "spoken")
    (text,) = (text for text in found["words"] if text["kind"] == "transcript")
    assert [piece.replace("\n", " ") for piece in _marked(text)] == marks
    assert found["stream_url"].endswith("#t=1.00,2.00")


@pytest.mark.parametrize(
    "q", ["??!", "...", "—", '"', '""', "()", "   ", "\u200d", "\ufe0f", "\u3000", "→ $ %"]
)
def test_query_without_words_is_refused(client: TestClient, q: str) -> None:
    answer = client.get("/search", params={"q": q})
    assert answer.status_code == 422
    ((field, message, hint),) = (error.values() for error in answer.json()["errors"])
    assert (field, hint) == ("q", "Describe the scene in a few words.")
    assert message == ("There are no words in this query." if q.strip() else "The query is empty.")

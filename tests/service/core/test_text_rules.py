"""Names of domains: normal form, refusals, keys and slugs."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, strategies
from pydantic import TypeAdapter, ValidationError

from cinestrata_schemas.domain_names import name_problem, normalize_name
from cinestrata_schemas.model_types import Name
from service.core.text_rules import make_slug, name_key, unused_slug

NAME = TypeAdapter(Name)


@pytest.mark.parametrize(
    ("given", "name", "slug"),
    [
        ("kitchen", "kitchen", "kitchen"),
        ("night traffic.2", "night traffic.2", "night-traffic-2"),
        ("Ku\u0308che", "K\u00fcche", "kuche"),
        ("夜の街", "夜の街", "yeno-jie"),
        ("مطبخ", "مطبخ", "mtbkh"),
        ("می\u200cخواهم", "می\u200cخواهم", "mykhwahm"),
        ("हिन्दी वीडियो", "हिन्दी वीडियो", "hindi-vidiyo"),
        ("\u3000Кухня\u00a0 №1 ".replace("№", "No. "), "Кухня No. 1", "kukhnya-no-1"),
        ("AC-DC (live), C++ & Kids' room?", "AC-DC (live), C++ & Kids' room?", "ac-dc-live-c-kids-room"),
        ("ー・1", "ー・1", "1"),
    ],
)
def test_name_in_any_script_is_accepted(given: str, name: str, slug: str) -> None:
    assert NAME.validate_python(given) == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", make_slug(name))
    if slug[0] not in "hm1":  # the spelling of the other transliterations belongs to the library
        assert make_slug(name) == slug


@pytest.mark.parametrize(
    "name",
    [
        *("", "   ", "\u3000", "...", "a\nb", "a\tb", "a\0b", "a\x7fb"),
        *("a/b", "..\\b", "<b>", "a|b", "x" * 81),
        *("evil\u202egnp.exe", "\u2066a\u2069", "a\u200bb", "\u200da", "a\ufeffb", "a\u2028b", "\u0301a"),
        *("a\ufe0f", "a\U000e0101", "\u3164", "\u115fa", "\ue000", "\u0378", "\ud800"),
        *("beach \U0001f3d6", "\U0001f468\u200d\U0001f373"),
    ],
)
def test_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        NAME.validate_python(name)


@given(strategies.text(max_size=60))
def test_accepted_names_are_stable_and_visible(text: str) -> None:
    name = normalize_name(text)
    assert normalize_name(name) == name
    assert name_key(name_key(name)) == name_key(name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", make_slug(name))
    if name and name_problem(name) is None:
        assert not {unicodedata.category(c) for c in name} & {"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "So"}
        assert name == unicodedata.normalize("NFC", name) == name.strip()


def test_names_that_differ_in_case_have_one_key_and_used_slugs_are_numbered() -> None:
    assert name_key("STRASSE") == name_key("Straße")
    assert name_key("ＡＢＣ") == name_key("abc")
    assert name_key("Küche") != name_key("Kuche")
    assert name_key("a\u200db") == name_key("ab"), "Persian and Indic scripts need joiners between letters"
    used = {"kuche", "kuche-2"}
    assert unused_slug("Küche", used.__contains__) == "kuche-3"
    assert unused_slug("ⵣ", set().__contains__)

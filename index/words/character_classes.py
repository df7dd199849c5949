"""Classes of characters that texts are divided by, as parts of regular expressions."""

from __future__ import annotations

# Han, kana and Hangul.
CJK = "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\u1100-\u11ff"
CJK += "\U00020000-\U0003fffd"
# Thai, Lao, Burmese and Khmer: vowels that precede their consonant, marks and vowels that follow it, and signs that
# stack the next consonant below it.
_LEADING = "\u0e40-\u0e44\u0ec0-\u0ec4"
_FOLLOWING = (
    "\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebd\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
)
_FOLLOWING += "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
_STACKING = "\u1039\u17d2"
UNSPACED = CJK + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
# What is divided no further in such scripts: a syllable without its final consonants, or a character of CJK.
SYLLABLE = f"[{_LEADING}]?[\\s\\S](?:[{_STACKING}][\\s\\S]|[{_FOLLOWING}]){{0,8}}"

# Pictures of the Unicode property Emoji, and the symbols beside them, such as notes and stars.
_PICTURE = (
    "\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe"
)
_PICTURE += "\u2600-\u275a\u2761-\u2767\u2794-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
_PICTURE += (
    "\U0001f004\U0001f0cf\U0001f170-\U0001f19a\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f7e0-\U0001faff"
)
_TAGS = "\U000e0020-\U000e007f"  # of the flags of regions
# Variation selectors and skin tones, which do not change the meaning of an emoji.
LOOKS = "\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
EMOJI_JOINERS = f"\u200d\u20e3{_TAGS}"
_WITH_LOOKS = f"[{_PICTURE}][{LOOKS}{_TAGS}]{{0,32}}"
_FLAG, _KEYCAP = "[\U0001f1e6-\U0001f1ff]{2}", "[0-9#*]\ufe0f?\u20e3"
EMOJI = f"(?:{_WITH_LOOKS}(?:\u200d{_WITH_LOOKS}){{0,8}}|{_FLAG}|{_KEYCAP})"

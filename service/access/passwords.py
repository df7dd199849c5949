"""Hash and verify passwords (argon2id)."""

from __future__ import annotations

import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from service.core.errors import InvalidInput

MIN_PASSWORD_CHARS = 10
MAX_PASSWORD_CHARS = 1024  # hashing time grows with the length

_hasher = PasswordHasher()  # the second recommendation of RFC 9106: 3 passes over 64 MiB


def check_password(password: str) -> None:
    """Check the length of a new password.

    Raises:
        InvalidInput: The password is too short or too long.
    """
    if not MIN_PASSWORD_CHARS <= len(_normalize(password)) <= MAX_PASSWORD_CHARS:
        raise InvalidInput.at(
            "password",
            f"A password has {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters.",
            "Several words are easier to remember than a short mix of characters.",
        )


def hash_password(password: str) -> str:
    """Hash a password with a salt."""
    return _hasher.hash(_encode(password))


def verify_password(password: str, stored: str | None) -> bool:
    """Verify a password against its stored hash. Without one, return False after the same time.

    Args:
        password: The password; never right if longer than ``MAX_PASSWORD_CHARS``.
        stored: The user's hash; None for an unknown user or one without a password.
    """
    if len(password) > MAX_PASSWORD_CHARS:
        return False
    try:
        return _hasher.verify(stored or _unknown_hash(), _encode(password)) and stored is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _unknown_hash() -> str:
    return _hasher.hash("the password of no user")


def _normalize(password: str) -> str:
    # Keyboards send either composed or decomposed characters for the same password.
    return unicodedata.normalize("NFC", password)


def _encode(password: str) -> bytes:
    return _normalize(password).encode("utf-8", "surrogatepass")

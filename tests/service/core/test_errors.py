"""The hierarchy of error classes."""

from __future__ import annotations

from service.core import errors


def test_every_error_has_a_status_and_a_title() -> None:
    def below(kind: type[errors.CinestrataError]) -> set[type[errors.CinestrataError]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    kinds = {kind for kind in below(errors.CinestrataError) if kind.__module__ == "service.core.errors"}
    for kind in kinds - {errors.CinestrataError, errors.TaskInterruption}:
        assert 400 <= kind.status < 600
        assert kind.title


def test_field_path_has_the_syntax_of_code() -> None:
    assert errors.field_path(("videos", 3, "captions", 0)) == "videos[3].captions[0]"
    assert errors.field_path(()) == "body"
    wrong = errors.InvalidInput.of(
        [errors.FieldError("a", "Wrong.", "Use b."), errors.FieldError("b", "Wrong.")]
    )
    assert str(wrong) == "a: Wrong. Use b. (1 more)"

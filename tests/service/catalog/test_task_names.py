"""Names and slugs of domains in the catalog."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.catalog.task_names import find_task
from service.core.errors import Conflict
from service.core.list_parameters import TaskFilters
from service.core.settings import Settings
from service.library import library_listing
from service.library.deletion import delete_task
from service.tasks import commands

Post = Callable[..., TaskDetails]


def _found(name: str) -> str | None:
    with session_scope() as session:
        task = find_task(session, name)
        return task.id if task else None


def test_domain_is_found_by_id_name_and_slug(catalog: Settings, post: Post) -> None:
    kitchen, city = post("Küche"), post("夜の街")
    assert (kitchen.slug, city.slug) == ("kuche", "yeno-jie")
    for name in (kitchen.id, "Küche", "Ku\u0308che", "KÜCHE", "kuche"):
        assert _found(name) == kitchen.id
    assert _found("夜の街") == _found("yeno-jie") == city.id
    for name in ("Kuchen", "\0", "\ud800", "", "%"):
        assert _found(name) is None
    assert [task.id for task in library_listing.list_tasks(TaskFilters(text="ÜCH")).tasks] == [kitchen.id]


def test_equal_names_and_slugs_are_refused(catalog: Settings, post: Post) -> None:
    post("Küche")
    for name in ("küche", "KÜCHE", "Kuche", "kuche"):
        with pytest.raises(Conflict):
            post(name)
    assert post("Kúche").slug == "kuche-2"
    assert post("kuche!").slug == "kuche-3"


def test_name_of_a_learned_domain_is_refused_with_the_request_that_appends(
    sqlite_catalog: Settings, post: Post
) -> None:
    task = post("cameras")
    append = Action(name="append_videos", id=task.id)
    for state, advice, remedy in (
        ("training", "Choose another name.", None),
        ("ready", "Choose another name, or append the videos to it.", append),
    ):
        with session_scope(write=True) as session:
            session.get_one(Task, task.id).state = state
        with pytest.raises(Conflict) as refusal:
            post("cameras")
        assert str(refusal.value) == f"name: A domain 'cameras' already exists. {advice}"
        assert refusal.value.remedy == remedy


def test_name_and_slug_of_a_deleted_domain_are_free(sqlite_catalog: Settings, post: Post) -> None:
    first = post("Küche")
    commands.cancel_task(first.id)
    with session_scope(write=True) as session:
        session.get_one(Task, first.id).learned_order = 1
    delete_task(first.id)
    assert commands.get_task(first.id).slug is None
    assert post("Küche", videos=1).slug == "kuche"


def test_concurrent_tasks_with_names_that_differ_in_case_are_refused(
    catalog: Settings, make_file: Callable[..., Path]
) -> None:
    make_file("a.mp4")
    names = ["Films", "films", "FILMS", "FiLMS"]
    barrier = Barrier(len(names))

    def create(name: str) -> str | None:
        spec = TaskSpec.model_validate({"name": name, "videos": [{"uri": "a.mp4"}]})
        barrier.wait()
        try:
            return commands.create_task(spec).task.id
        except Conflict:
            return None

    with ThreadPoolExecutor(len(names)) as threads:
        created = [task for task in threads.map(create, names) if task]
    assert [task.id for task in commands.list_tasks()] == created
    assert len(created) == 1

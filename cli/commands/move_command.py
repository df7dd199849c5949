"""``cinestrata move``: take the vectors of every task to the other store. Nothing is embedded again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cli.console import console, fail, progress_bar
from cli.embedded.data_folder_lock import data_folder_settings

__all__ = ["run_move"]


def run_move(to: Literal["faiss", "milvus"], data: Path | None) -> None:
    """Copy task by task, each published when it is whole. Searches go on meanwhile.

    What was cut off is taken up by the next one. What a task leaves behind is swept away an hour later, by a worker. Of
    a task without any video left nothing is copied: its vectors go.
    """
    from index.errors import ShardStoreError
    from service.catalog.migrations import upgrade
    from service.library.compaction import update_shard_rows
    from service.storage.vector_store_selection import library_store

    settings = data_folder_settings(data)
    if not settings.milvus_uri:
        fail("No Milvus is set.", "Set CINESTRATA_MILVUS_URI to the one that vectors go to, or come from.")
    upgrade(settings)
    store = library_store(settings.model_copy(update={"vector_store": to}))
    moved = 0
    try:
        manifest = store.manifest()
        held = {task: shard for task, shard in manifest.shards.items() if shard.count}
        away = [task for task, shard in held.items() if bool(shard.place) is not (to == "milvus")]
        update_shard_rows(manifest, manifest.shards)  # whoever moved them may have died just before this
        with progress_bar("tasks") as bar:
            line = bar.add_task(f"Moving to {to}", total=len(away))
            for task in away:
                update_shard_rows(store.move(task), [task])
                moved += 1
                bar.advance(line)
    except (OSError, ShardStoreError) as error:
        fail(
            f"{moved} tasks were moved, then: {error}",
            "Mend what is named, and move again: it goes on there.",
        )
    console.print(f"{moved} tasks moved to {to}; {len(held) - len(away)} were there.", soft_wrap=True)
    if settings.vector_store != to:
        console.print(f"New tasks still go to the other store: set CINESTRATA_VECTOR_STORE={to}.")

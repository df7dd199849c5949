"""``cinestrata move``: copy the vectors of all domains to another vector store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cli.console import console, fail, print_json, progress_bar, report_errors
from cli.embedded.data_folder import data_folder_settings
from cli.shared_options import AsJson, Data

app = typer.Typer()


@app.command()
@report_errors
def move(
    to: Annotated[Literal["faiss", "milvus"], typer.Option("--to", help="Target vector store.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Copy the vectors of all domains to another vector store.

    The service may keep running, and nothing is re-embedded.
    """
    from index.errors import ShardStoreError
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade
    from service.library.compaction import update_shard_rows
    from service.storage.index_manifest import library_store

    settings = data_folder_settings(data)
    if not settings.milvus.uri:
        fail(
            "CINESTRATA_MILVUS__URI is not set.", "Set it to the Milvus server that vectors move to or from."
        )
    upgrade(settings)
    set_process_actor(command_line_actor())
    store = library_store(settings.model_copy(update={"vector_store": to}))
    moved = 0
    try:
        manifest = store.manifest()
        nonempty = {task: shard for task, shard in manifest.shards.items() if shard.count}
        pending = [task for task, shard in nonempty.items() if bool(shard.place) is not (to == "milvus")]
        update_shard_rows(
            manifest, manifest.shards, "shard.move"
        )  # an earlier move may have ended before this step
        with progress_bar("domains") as bar:
            row = bar.add_task(f"Moving to {to}", total=len(pending))
            for task in pending:
                update_shard_rows(store.move(task), [task], "shard.move")
                moved += 1
                bar.advance(row)
    except (OSError, ShardStoreError) as error:
        fail(
            f"Moving stopped after {moved} domains: {error}",
            "Fix the reported cause and run the command again; it continues with the next domain.",
        )
    print_json({"store": to, "moved": moved, "already_there": len(nonempty) - len(pending)})
    console.say(f"{moved} domains moved to {to}; {len(nonempty) - len(pending)} were already there.")
    if settings.vector_store != to:
        console.say(f"New domains still use the other store: set CINESTRATA_VECTOR_STORE={to}.")

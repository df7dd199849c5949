"""``cinestrata releases``: list releases, and choose the one that searches use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, fail, plain_table, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cinestrata_schemas.releases import ServedChange, ServeOutcome
    from cli.service_client import ServiceClient


app = typer.Typer()


@app.command()
@report_errors
def releases(
    served: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="RELEASE",
            help="Use this release for searches: its ID or first characters, the domain that it learned "
            "last, or 'newest'. Nothing is deleted or re-indexed.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what --serve would change.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List all releases in learning order, or choose the one that searches use."""
    from cli.service_client import PAGE, connect

    client = connect(url, data)
    if served is not None:
        _serve(client, served, dry_run, yes)
        return
    table = plain_table("t", "learned", "method", "release", "published", "")
    found = list(client.iter_releases(limit=PAGE))
    print_json(found)
    for release in found:
        table.add_row(
            str(release.learned_order),
            release.task,
            release.method,
            release.id[:12],
            f"{release.created_at:%Y-%m-%d %H:%M}",
            "served" if release.current else "",
        )
    console.print(table)


def _serve(client: ServiceClient, release: str, dry_run: bool, yes: bool) -> None:
    from cinestrata_schemas.releases import ServeSpec

    preview = client.serve_release(release, body=ServeSpec(dry_run=True))
    _print_effects(preview)
    if dry_run or not preview.changed:
        print_json(preview)
        return
    if preview.unsearchable.videos and not yes:
        if not console.is_terminal:
            fail("Nothing was changed: the change needs confirmation.", "Repeat the command with --yes.")
        typer.confirm("Serve this release?", abort=True)
    # Pass the argument again, not the preview's ID: a newer release may have been published since.
    done = client.serve_release(release, body=ServeSpec(dry_run=False))
    print_json(done)
    console.print(f"Now serving release {done.release[:12]}, after {done.task!r}.", soft_wrap=True)
    if done.pinned:
        console.print(
            "Newly learned domains are not searched until you serve a later release: cinestrata releases "
            "--serve newest",
            soft_wrap=True,
        )


def _print_effects(outcome: ServeOutcome) -> None:
    name = f"Release {outcome.release[:12]} after {outcome.task!r}"
    if not outcome.changed:
        console.print(f"{name} is already served.", soft_wrap=True)
        return
    console.print(f"{name}: {outcome.searchable_videos:,} searchable videos", soft_wrap=True)
    _print_change("no longer searchable", outcome.unsearchable)
    _print_change("searchable again", outcome.searchable_again)
    if outcome.kept_appended:
        console.print(f"  stay searchable: {outcome.kept_appended:,} videos that were appended later")


def _print_change(heading: str, change: ServedChange) -> None:
    if not change.domains:
        return
    domains = "1 domain" if change.domains == 1 else f"{change.domains:,} domains"
    console.print(f"  {heading}: {domains} with {change.videos:,} videos")
    for domain in change.first:
        appended = f", {domain.appended:,} of them appended" if domain.appended else ""
        console.print(f"    {domain.task}: {domain.videos:,} videos{appended}", soft_wrap=True, markup=False)
    if change.domains > len(change.first):
        console.print(f"    and {change.domains - len(change.first):,} more domains")

"""``cinestrata feedback``: say which videos are right or wrong for a query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cinestrata_schemas.choice_types import Verdict
from cli.console import console, plain_table, print_json, report_errors
from cli.service_client import connect
from cli.shared_options import AsJson, Data, Url

app = typer.Typer(help="Tell the library which videos are right or wrong for a query.", no_args_is_help=True)

_Text = Annotated[str, typer.Argument(help="Query that was searched.")]
_Video = Annotated[str, typer.Argument(help="ID of the video.")]


@app.command()
@report_errors
def right(text: _Text, video: _Video, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Confirm that a video is right for a query: the next search finds it by these words."""
    run_feedback(text, video, "right", url, data)


@app.command()
@report_errors
def wrong(text: _Text, video: _Video, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Mark a video as wrong for a query: the next search for these words ranks it lower."""
    run_feedback(text, video, "wrong", url, data)


@app.command("list")
@report_errors
def list_feedback(
    video: Annotated[str | None, typer.Option("--video", help="Only feedback on this video (ID).")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Only feedback for queries containing this text.")
    ] = None,
    verdict: Annotated[Verdict | None, typer.Option("--verdict", help="Only this verdict.")] = None,
    caller: Annotated[
        str | None, typer.Option("--caller", help="Only feedback from this user or key.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List feedback, newest first."""
    from rich.text import Text

    page = connect(url, data).list_feedback(
        video_id=video, text=text, verdict=verdict, caller=caller, limit=limit
    )
    print_json(page)
    if not page.feedback:
        console.print("No feedback matches.")
        return
    table = plain_table("id", "time", "caller", "verdict", "text", "video")
    for entry in page.feedback:
        at = f"{entry.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
        cells = (str(entry.id), at, entry.caller, entry.verdict, entry.text, entry.video_id)
        table.add_row(*map(Text, cells))
    console.print(table)


@app.command("take-back")
@report_errors
def take_back(
    feedback_id: Annotated[int, typer.Argument(help="ID of the entry.", metavar="ID")],
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Take back feedback: the next search no longer counts it."""
    connect(url, data).take_back_feedback(feedback_id)
    print_json({"taken_back": feedback_id})
    console.print(f"Feedback {feedback_id} was taken back.")


def run_feedback(text: str, video: str, verdict: Verdict, url: str | None, data: Path | None) -> None:
    """Give feedback to a service or a data folder, and print it."""
    from cinestrata_schemas.feedback import FeedbackSpec

    given = connect(url, data).give_feedback(FeedbackSpec(text=text, video_id=video, verdict=verdict))
    print_json(given)
    console.print(
        f"Noted: {video} is {verdict} for this query. To undo: cinestrata feedback take-back {given.id}"
    )

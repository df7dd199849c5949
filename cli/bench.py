"""``cinestrata bench``: make the shipped weights anew, and measure methods side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from cli.console import console, in_words, progress_bar

__all__ = ["app"]

app = typer.Typer(help="Make the shipped weights anew, and measure.", no_args_is_help=True)


@app.command()
@in_words
def pretrain(
    out: Annotated[Path, typer.Option("--out", help="Where the weights go.")] = Path(
        "models/tiny/weights.safetensors"
    ),
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that render videos.")] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Fewer than the recipe's, for a try.")
    ] = None,
) -> None:
    """Train the `tiny` backbone from nothing."""
    from benchmarks.pretrain import Recipe, pretrain

    recipe = Recipe() if steps is None else Recipe(steps=steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with progress_bar("steps") as bar:
        training = bar.add_task("Pre-training", total=recipe.steps)

        def report(step: int, loss: float) -> None:
            bar.update(training, completed=step, description=f"Pre-training (loss {loss:.3f})")

        pretrain(out, recipe, device=device, workers=workers, report=report)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB) after {time.monotonic() - began:.0f} s.")


@app.command()
@in_words
def methods(
    names: Annotated[list[str] | None, typer.Argument(help="Methods (default: all).")] = None,
    domains: Annotated[
        list[str] | None, typer.Option("--domain", help="In this order (default: the demo's).")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many runs of each method.")] = 3,
    backbone: Annotated[str, typer.Option("--backbone")] = "tiny",
    prior: Annotated[
        float | None,
        typer.Option("--prior", min=0, help="Of routing; 0 merges raw cosines, as in the papers."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.json and table.md.")] = Path(
        "cinestrata-data/bench/methods"
    ),
) -> None:
    """Learn the same sequence of domains with each method, and compare what is found and what is forgotten."""
    from benchmarks.sequence import DomainSequence, prepare, run_method, table, write_results
    from benchmarks.world import DEMO_DOMAINS
    from models.backbone import load_backbone
    from models.routing import PRIOR
    from service.methods import METHOD_NAMES

    sequence = DomainSequence(domains=tuple(domains or DEMO_DOMAINS))
    loaded = load_backbone(backbone)
    with console.status("Rendering the domains …"):
        tasks = prepare(sequence, loaded, out / "frames")
    results = []
    with progress_bar("runs") as bar:
        for name in bar.track(names or METHOD_NAMES, description="Measuring"):
            # Without training there is nothing that a seed could change.
            for seed in range(1 if name == "zero_shot" else seeds):
                weight = PRIOR if prior is None else prior
                results.append(
                    run_method(name, loaded, tasks, seed=seed, prior=weight, report=bar.console.print)
                )
    write_results(results, sequence, loaded, out)
    console.print(table(results), markup=False)
    console.print(f"Written to {out}.")

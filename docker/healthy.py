#!/usr/bin/env python3
"""Status 0 when this container can do its work.

A worker is asked nothing: while it trains it cannot answer, and a hanging one is found out by its lease. What can
be wrong without its noticing is the way to the catalog and to the broker.
"""

from __future__ import annotations

import os
import sys
from urllib.request import ProxyHandler, build_opener

if sys.argv[1] == "api":
    # Whatever proxy the container was given for other addresses.
    direct = build_opener(ProxyHandler({}))
    direct.open(f"http://127.0.0.1:{os.environ.get('CINESTRATA_PORT', '8000')}/readyz", timeout=4).close()
else:
    from service.catalog import database
    from service.tasks import broker

    database.check()
    sys.exit(not broker.check())

"""The process of one peer: `python -m dada.net FOLDER`, started by `dada peer run` and by a swarm."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def _without_openssl() -> None:
    """Keep OpenSSL out of the process, some 5 MB: links have encryption of their own, and Python has hashes of its own.

    asyncio and hashlib load it where they find it, and do without where they do not.
    """
    unused = ["ssl"]
    if find_spec("_sha2") or find_spec("_sha256"):
        unused.append("_hashlib")
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]


def main() -> int:
    """Run the peer of the command line."""
    _without_openssl()
    from dada.net.runner import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())

"""The recorded replies of the tests, and the language model that gives them (bench/chaos/reply_server.py).

`python -m llm_replies.server tests/llm_replies/learning_rate` prints its URL and serves until it is ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.chaos.reply_server import BROKEN_JSON, DROP, HANG, OTHER_JSON, PAGE
from bench.chaos.reply_server import ReplyServer as AnyReplyServer

LEARNING_RATE = Path(__file__).parent / "learning_rate"

__all__ = ["BROKEN_JSON", "DROP", "HANG", "LEARNING_RATE", "OTHER_JSON", "PAGE", "ReplyServer"]


class ReplyServer(AnyReplyServer):
    """Serves the study of learning rates unless it is given other replies."""

    def __init__(self, replies: Path = LEARNING_RATE, **options: object) -> None:
        super().__init__(replies, **options)


if __name__ == "__main__":
    server = ReplyServer(Path(sys.argv[1]) if len(sys.argv) > 1 else LEARNING_RATE)
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    server.serve_forever()

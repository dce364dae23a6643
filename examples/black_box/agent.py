"""A program that answers a question with the model its environment names. It knows nothing of training."""

from __future__ import annotations

import json
import os
import sys
import urllib.request


def main() -> None:
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(
            {
                "model": os.environ.get("OPENAI_MODEL", "default"),
                "max_tokens": 12,
                "messages": [{"role": "user", "content": sys.argv[1]}],
            }
        ).encode(),
        {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        print(json.load(reply)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()

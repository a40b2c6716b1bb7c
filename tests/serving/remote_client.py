"""A client on another host: sends requests until a line arrives on standard input, and prints its answers by status.

    python tests/serving/remote_client.py once|quiet|load URL...

`once` asks each URL once with the key and once without; `quiet` is one client, `load` are twelve.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter

import httpx

from tests.support.pictures import draw_person
from tests.support.serving import encode

CLIENTS = {"quiet": 1, "load": 12}


def main() -> None:
    kind, *urls = sys.argv[1:]
    answers: Counter[str] = Counter()
    files = {"source": encode(draw_person(1)), "target": encode(draw_person(2))}
    key = {"Authorization": f"Bearer {os.environ['FUSIONRAY_API_KEY']}"}
    ended = threading.Event()

    def send(url: str, headers: dict[str, str]) -> None:
        try:
            answers[str(httpx.post(f"{url}/v1/fuse", files=files, headers=headers, timeout=60).status_code)] += 1
        except httpx.TransportError as error:
            answers[repr(error)] += 1

    def work(first: int) -> None:
        number = first
        while not ended.is_set():
            send(urls[number % len(urls)], key)
            number += 1

    if kind == "once":
        for url in urls:
            send(url, key)
            send(url, {})
    else:
        clients = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS[kind])]
        for client in clients:
            client.start()
        sys.stdin.readline()
        ended.set()
        for client in clients:
            client.join()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()

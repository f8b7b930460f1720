"""Asks every animal of the zoo how it is; ``ask.py HOME [AMOUNT NOTE]`` first gives each something to remember."""
import json
import os
import socket
import sys
import urllib.request

HOME = sys.argv[1]
ORDER = {"amount": int(sys.argv[2]), "note": sys.argv[3]} if len(sys.argv) > 2 else None


def over_http(port: int) -> dict:
    body = json.dumps(ORDER).encode() if ORDER else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"http://127.0.0.1:{port}/", data=body), timeout=20) as answer:
        return json.load(answer)


def held() -> dict:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(os.path.join(HOME, "held.sock"))
        link.sendall(json.dumps({"write": ORDER["note"] if ORDER else None}).encode() + b"\n")
        return json.loads(link.makefile().readline())


def text(name: str) -> str:
    with open(os.path.join(HOME, name), encoding="ascii") as file:
        return file.read()


rounds, running, pipeline = (int(word) for word in text("jobs.shell").split())
print(json.dumps({
    "web": over_http(8101),
    "jobs": {"count": int(text("jobs.count")), "rounds": rounds, "running": running, "pipeline": pipeline},
    "node": over_http(8103),
    "held": held(),
    "link": json.loads(text("link.json")),
}))

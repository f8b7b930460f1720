"""The zoo's loopback client: sends counting numbers over one connection and writes down every answer that is wrong."""
import json
import os
import socket
import sys
import time

HOME = sys.argv[1]
PORT = 8105
PAUSE_SECONDS = 0.01


def connect() -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


state = {"sent": 0, "answered": 0, "wrong": [], "broken": None, "pid": os.getpid()}


def write_down() -> None:
    new = os.path.join(HOME, "link.json.new")
    with open(new, "w", encoding="ascii") as file:
        json.dump(state, file)
    os.rename(new, os.path.join(HOME, "link.json"))


link = connect()
answers = link.makefile("rb")
while state["broken"] is None:
    state["sent"] += 1
    try:
        link.sendall(b"%d\n" % state["sent"])
        line = answers.readline()
        number, seen = (int(word) for word in line.split())
        state["answered"] += 1
        if number != state["sent"] or seen != state["answered"]:
            state["wrong"].append([state["sent"], number, seen])
    except (OSError, ValueError) as error:
        state["broken"] = repr(error)
    write_down()
    time.sleep(PAUSE_SECONDS)

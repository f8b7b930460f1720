"""The zoo's holder of a deleted file: asked over a unix socket for its content, its offset and more bytes."""
import hashlib
import json
import os
import socket
import sys

HOME = sys.argv[1]
SIZE = 64 * 1024
OFFSET = 12_345

path = os.path.join(HOME, "held.bin")
held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.write(held, bytes(number * 7 % 251 for number in range(SIZE)))
os.unlink(path)
os.lseek(held, OFFSET, os.SEEK_SET)

listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.join(HOME, "held.sock"))
listener.listen()
while True:
    peer, _ = listener.accept()
    with peer:
        order = json.loads(peer.makefile().readline())
        if order.get("write"):
            os.write(held, order["write"].encode())
        size = os.fstat(held).st_size
        content = os.pread(held, size, 0)
        answer = {"size": size, "offset": os.lseek(held, 0, os.SEEK_CUR), "links": os.fstat(held).st_nlink,
                  "sha256": hashlib.sha256(content).hexdigest(), "pid": os.getpid(),
                  "tail": content[OFFSET:os.lseek(held, 0, os.SEEK_CUR)].decode(errors="replace")}
        peer.sendall(json.dumps(answer).encode() + b"\n")

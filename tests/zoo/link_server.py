"""The zoo's loopback server: answers each number of its one client with the number and how many it has seen."""
import socket

PORT = 8105

listener = socket.create_server(("127.0.0.1", PORT))
peer, _ = listener.accept()
seen = 0
for line in peer.makefile("rb"):
    seen += 1
    peer.sendall(b"%d %d\n" % (int(line), seen))

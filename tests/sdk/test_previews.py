"""Ports of a sandbox, shared over HTTP: who is let in, what reaches the program, and what never does."""
import base64
import http.client
import json
import os
import socket
import urllib.parse
from datetime import datetime, timedelta, timezone

import pytest
from support.node import Node
from support.wait import said, until
from withruntime import NotFoundError
from withruntime._errors import RuntimeError as SdkError

# Answers with what it was asked; /stream says one line, and the next one when it is told; /ws speaks WebSocket enough
# to echo one frame.
SERVER = """
import http.server, json, hashlib, base64, os, time, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        if self.path == '/stream': return self.stream()
        if self.path == '/ws': return self.ws()
        length = int(self.headers.get('Content-Length') or 0)
        if self.headers.get('Transfer-Encoding') == 'chunked':
            body = b''
            while size := int(self.rfile.readline(), 16): body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else: body = self.rfile.read(length)
        out = json.dumps({'method': self.command, 'path': self.path, 'body': len(body),
                          'sha': hashlib.sha256(body).hexdigest(), 'headers': {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200); self.send_header('Content-Length', len(out)); self.send_header('X-Frame-Options', 'DENY')
        self.send_header('Set-Cookie', 'own=1'); self.end_headers(); self.wfile.write(out)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer
    def stream(self):
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        self.wfile.write(b'6\\r\\nfirst\\n\\r\\n'); self.wfile.flush()
        while not os.path.exists('/workspace/go'): time.sleep(0.01)
        self.wfile.write(b'7\\r\\nsecond\\n\\r\\n0\\r\\n\\r\\n'); self.wfile.flush()
    def ws(self):
        key = self.headers['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
        self.send_response(101); self.send_header('Upgrade', 'websocket'); self.send_header('Connection', 'Upgrade')
        self.send_header('Sec-WebSocket-Accept', base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
        while head := self.rfile.read(2):
            mask = self.rfile.read(4); data = self.rfile.read(head[1] & 127)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
            self.wfile.write(bytes([0x82, len(data)]) + data); self.wfile.flush()
        self.close_connection = True
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 3000), Handler)
print('listening', flush=True)
server.serve_forever()
"""


def serve(sandbox, address: str = "0.0.0.0"):
    process = sandbox.spawn(["python3", "-u", "-c", SERVER, address])
    until(lambda: "listening" in said(process), what="the server listens")
    return process


@pytest.fixture
def served(sandbox):
    serve(sandbox)
    return sandbox


class Page:
    def __init__(self, response) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body)


def ask(node, url: str, *, method="GET", headers=None, body=None) -> Page:
    """A visit as a client makes it that does not resolve ``*.localhost``: the address in the Host header."""
    parts = urllib.parse.urlsplit(url)
    api = urllib.parse.urlsplit(node.url)
    connection = http.client.HTTPConnection(api.hostname, api.port, timeout=30)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request(method, path, body=body, headers={"Host": parts.netloc, **(headers or {})},
                       encode_chunked=hasattr(body, "__next__"))
    try:
        return Page(connection.getresponse())
    finally:
        connection.close()


def token(preview) -> dict:
    return {"x-runtime-preview-token": preview["token"]}


def test_a_port_is_shared_listed_rotated_and_shared_no_more(node, served):
    made = served.previews.create(3000)
    assert made["id"] == f"3000-{served.id}" and made["sandboxId"] == served.id and made["port"] == 3000
    assert made["url"] == f"http://3000-{served.id}.localhost:{urllib.parse.urlsplit(node.url).port}/"
    assert made["urlWithToken"] == f"{made['url']}?runtime_preview_token={made['token']}"
    assert (made["visibility"], made["disabled"], made["embedOrigins"]) == ("private", False, None)
    again = served.previews.create(3000, ttl_seconds=120)
    assert (again["id"], again["createdAt"]) == (made["id"], made["createdAt"])
    served.previews.create(3001, visibility="public")
    listed = served.previews.list()
    assert [(p["port"], p["visibility"], p["token"] is None) for p in listed] == [
        (3000, "private", False), (3001, "public", True)]
    for preview in (made, again, listed[0], served.previews.get(3000)):
        assert ask(node, preview["url"], headers=token(preview)).status == 200
    rotated = served.previews.rotate(3000)
    assert ask(node, made["url"], headers=token(made)).status == 403
    assert ask(node, made["url"], headers=token(rotated)).status == 200
    assert served.previews.delete(3000) == {"id": made["id"], "sandboxId": served.id, "port": 3000, "deleted": True}
    assert served.previews.delete(3000)["deleted"] is True
    assert ask(node, made["url"], headers=token(rotated)).status == 404
    with pytest.raises(NotFoundError):
        served.previews.get(3000)


def test_a_token_counts_in_the_header_the_address_and_the_cookie_and_is_not_passed_on(node, served):
    preview = served.previews.create(3000)
    assert ask(node, preview["url"]).status == 401
    by_header = ask(node, preview["url"] + "a?x=1", headers={**token(preview), "Cookie": "mine=2"})
    assert (by_header.json["path"], by_header.json["headers"]["cookie"]) == ("/a?x=1", "mine=2")
    by_query = ask(node, preview["urlWithToken"] + "&y=%20z")
    assert by_query.status == 200 and by_query.json["path"] == "/?y=%20z"
    cookies = by_query.headers.get_all("Set-Cookie")
    assert cookies[0] == "own=1" and len(cookies) == 2 and "HttpOnly" in cookies[1] and "Path=/" in cookies[1]
    cookie = cookies[1].split(";")[0]
    by_cookie = ask(node, preview["url"], headers={"Cookie": f"mine=2; {cookie}"})
    assert by_cookie.json["headers"]["cookie"] == "mine=2"
    for page in (by_header, by_query, by_cookie):
        assert preview["token"] not in page.body.decode()
    # What was said on purpose counts before the cookie.
    assert ask(node, preview["url"], headers={"x-runtime-preview-token": "x", "Cookie": cookie}).status == 403
    other = served.previews.create(3001)
    assert ask(node, preview["url"], headers=token(other)).status == 403


def test_a_token_expires(node, served):
    soon = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    preview = served.previews.create(3000, expires_at=soon, ttl_seconds=3600)
    assert preview["tokenExpiresAt"][:19] == soon[:19]
    until(lambda: ask(node, preview["url"], headers=token(preview)).status == 403, what="it expires")
    assert ask(node, preview["url"], headers=token(served.previews.get(3000, ttl_seconds=60))).status == 200
    for wrong in ({"ttl_seconds": 59}, {"ttl_seconds": 604_801}, {"expires_at": "2001-01-01T00:00:00Z"}):
        with pytest.raises(SdkError) as refused:
            served.previews.create(3000, **wrong)
        assert refused.value.code == "invalid_request"


def test_requests_reach_the_program_as_they_were_sent(node, served):
    preview = served.previews.create(3000, visibility="public")
    body = os.urandom(3_000_000)
    page = ask(node, preview["url"] + "up", method="PUT", body=body, headers={"X-Mine": "1", "TE": "trailers"})
    assert (page.json["method"], page.json["body"]) == ("PUT", len(body))
    seen = page.json["headers"]
    host = urllib.parse.urlsplit(preview["url"]).netloc
    assert (seen["host"], seen["x-forwarded-host"], seen["x-forwarded-proto"]) == (host, host, "http")
    assert seen["x-mine"] == "1" and "te" not in seen and seen["x-forwarded-for"] == "127.0.0.1"
    pieces = (os.urandom(10_000) for _ in range(30))
    assert ask(node, preview["url"], method="POST", body=pieces).json["body"] == 300_000
    # A key of the node that was sent here by mistake stays outside; a program's own goes through.
    leaked = ask(node, preview["url"], headers={"Authorization": f"Bearer {node.key}"})
    assert node.key not in leaked.body.decode() and "authorization" not in leaked.json["headers"]
    own = ask(node, preview["url"], headers={"Authorization": "Bearer mine"})
    assert own.json["headers"]["authorization"] == "Bearer mine"


def open_raw(node, url: str, request: str) -> socket.socket:
    parts, api = urllib.parse.urlsplit(url), urllib.parse.urlsplit(node.url)
    connection = socket.create_connection((api.hostname, api.port), timeout=30)
    connection.sendall(request.replace("HOST", parts.netloc).replace("\n", "\r\n").encode())
    return connection


def read_until(connection: socket.socket, word: bytes) -> bytes:
    out = b""
    while word not in out:
        piece = connection.recv(4096)
        assert piece, out
        out += piece
    return out


def test_an_answer_comes_as_it_is_made(node, served):
    preview = served.previews.create(3000, visibility="public")
    with open_raw(node, preview["url"], "GET /stream HTTP/1.1\nHost: HOST\n\n") as connection:
        assert b"second" not in read_until(connection, b"first")
        served.files.write("/workspace/go", b"")
        read_until(connection, b"second")


def websocket(node, preview) -> socket.socket:
    key = base64.b64encode(os.urandom(16)).decode()
    request = ("GET /ws HTTP/1.1\nHost: HOST\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n"
               f"Sec-WebSocket-Version: 13\nSec-WebSocket-Key: {key}\nx-runtime-preview-token: {preview['token']}\n\n")
    connection = open_raw(node, preview["url"], request)
    head = read_until(connection, b"\r\n\r\n")
    assert b" 101 " in head and b"sec-websocket-accept" in head.lower()
    return connection


def echo(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(bytes([0x82, 0x80 | len(data), 0, 0, 0, 0]) + data)
    return read_until(connection, data)[2:]


def test_websockets_pass_and_are_cut_when_the_port_is_shared_no_more(node, served):
    preview = served.previews.create(3000)
    with websocket(node, preview) as first, websocket(node, preview) as second:
        assert echo(first, b"hello") == b"hello" and echo(second, b"again") == b"again"
        served.previews.delete(3000)
        assert first.recv(10) == b"" and second.recv(10) == b""


def test_pages_say_why_there_is_nothing_to_see(node, runtime, sandbox):
    preview = sandbox.previews.create(3000)
    page = ask(node, preview["url"], headers={**token(preview), "Accept": "text/html"})
    assert page.status == 502 and b"<p>Nothing listens on port 3000" in page.body
    page = ask(node, preview["url"], headers=token(preview))
    assert page.status == 502 and page.headers["Content-Type"].startswith("text/plain")
    port = urllib.parse.urlsplit(node.url).port
    for label in (f"3001-{sandbox.id}", "3000-nonsense", "api", f"0-{sandbox.id}"):
        assert ask(node, f"http://{label}.localhost:{port}/").status == 404, label
    gone = runtime.sandboxes.create()
    shared = gone.previews.create(3000)
    gone.delete()
    assert ask(node, shared["url"], headers=token(shared)).status == 410
    sandbox.stop()
    assert ask(node, preview["url"], headers=token(preview)).status == 410
    assert sandbox.previews.get(3000)["disabled"] is True


def test_a_preview_is_no_way_to_the_api_and_the_api_none_to_a_preview(node, served):
    preview = served.previews.create(3000, visibility="public")
    page = ask(node, preview["url"] + "v1/me", headers={"Authorization": f"Bearer {node.key}"})
    assert page.json["path"] == "/v1/me"
    api = ask(node, node.url + "/v1/me", headers={"Authorization": f"Bearer {node.key}"})
    assert api.status == 200 and "path" not in api.json
    served.previews.delete(3000)
    assert ask(node, preview["url"] + "v1/me", headers={"Authorization": f"Bearer {node.key}"}).status == 404
    # A request line with a host, as proxies get it, counts for more than the header.
    with open_raw(node, node.url, f"GET {preview['url']}v1/me HTTP/1.1\nHost: HOST\nConnection: close\n\n") as connection:
        assert b" 404 " in read_until(connection, b"\r\n")


def test_sites_that_may_embed_are_named(node, served):
    preview = served.previews.create(3000, embed_origins=["https://app.example.com", "https://*.example.org"])
    assert preview["embedOrigins"] == ["https://app.example.com", "https://*.example.org"]
    page = ask(node, preview["urlWithToken"])
    assert page.headers["Content-Security-Policy"] == "frame-ancestors 'self' https://app.example.com https://*.example.org"
    assert page.headers["X-Frame-Options"] is None
    assert "SameSite=None; Secure" in page.headers.get_all("Set-Cookie")[1]
    assert served.previews.create(3000)["embedOrigins"] == preview["embedOrigins"]
    assert served.previews.create(3000, embed_origins=[])["embedOrigins"] is None
    page = ask(node, preview["urlWithToken"])
    assert page.headers["Content-Security-Policy"] is None and page.headers["X-Frame-Options"] == "DENY"
    with pytest.raises(SdkError):
        served.previews.create(3000, embed_origins=["https://a; script-src *"])


def test_a_server_on_either_loopback_is_reached(node, sandbox):
    serve(sandbox, "127.0.0.1")
    preview = sandbox.previews.create(3000, visibility="public")
    assert ask(node, preview["url"]).status == 200


def test_a_fork_shares_nothing_and_its_server_can_be_shared_anew(node, served):
    preview = served.previews.create(3000)
    with websocket(node, preview) as held:
        assert echo(held, b"before") == b"before"
        copy = served.fork()
        assert echo(held, b"after") == b"after"
    try:
        assert copy.previews.list() == []
        its = copy.previews.create(3000)
        assert ask(node, its["url"], headers=token(preview)).status == 403
        assert ask(node, its["url"], headers=token(its)).status == 200
        assert ask(node, preview["url"], headers=token(preview)).status == 200
    finally:
        copy.delete()


def test_a_visit_wakes_a_paused_sandbox(node, served):
    preview = served.previews.create(3000)
    with websocket(node, preview) as held:
        assert echo(held, b"one") == b"one"
        served.pause()
        assert held.recv(10) == b""
    assert ask(node, preview["url"], headers=token(preview)).status == 200
    assert served.refresh().state == "running"


def test_what_is_shared_outlives_the_node():
    with Node(end_sandboxes=False) as node:
        sandbox = node.client.sandboxes.create()
        serve(sandbox)
        preview = sandbox.previews.create(3000, embed_origins=["https://app.example.com"])
        assert ask(node, preview["url"], headers=token(preview)).status == 200
        node.crash()
        node.start()
        again = node.client.sandboxes.get(sandbox.id).previews.get(3000)
        assert again["embedOrigins"] == ["https://app.example.com"] and again["createdAt"] == preview["createdAt"]
        assert ask(node, again["url"], headers=token(preview)).status == 200

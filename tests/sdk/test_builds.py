"""Builds: Dockerfiles and recipes, carried out in sandboxes, and what is left of them."""
import hashlib
import pathlib
import tarfile

import pytest
from support.images import busybox, made, send, tar_of
from support.node import Node
from support.wait import until


@pytest.fixture(scope="module")
def base(node):
    """Named `base` in the Dockerfiles here."""
    return made(node, send(node, busybox(), name="base"))


def build(node, text, status=201, **fields) -> dict:
    answer = node.raw("POST", "/v1/images", {"dockerfile": text, **fields})
    assert answer.status == status, answer.body
    return answer.json


def failure(node, text, **fields) -> str:
    image = build(node, text, **fields)
    ended = until(lambda: (now := node.raw("GET", f"/v1/images/{image['id']}").json)["state"] not in ("queued", "building") and now,
                  seconds=60, what="the build ends")
    assert ended["state"] == "failed", ended
    return ended["error"]


def log_of(node, image) -> list:
    return node.raw("GET", f"/v1/images/{image['id']}/logs").json["lines"]


def in_image(runtime, image, command, **how) -> str:
    with runtime.sandboxes.create(image=image["id"], **how) as sandbox:
        return sandbox.exec(command).stdout


def sent(node, archive: bytes) -> dict:
    """A context, sent in one chunk."""
    name = hashlib.sha256(archive).hexdigest()
    assert node.raw("PUT", f"/v1/images/context/{name}", data=archive).status == 200
    return {"archive": {"sha256": name, "size": len(archive), "chunks": [name]}}


def file(path, content, **more) -> dict:
    return {"path": path, "content": content, **more}


def test_a_dockerfile_becomes_an_image(node, runtime, base):
    text = """
        # syntax=docker/dockerfile:1
        ARG FROM=base
        FROM ${FROM}
        ARG WHO=nobody
        ENV GREETING="hello $WHO" PATH=/opt/bin:$PATH
        WORKDIR /srv/app
        COPY --chmod=0750 main.sh conf* ./
        RUN echo "built for $WHO in $PWD" > built && \\
            # a comment in between
            echo done
        RUN ["touch", "a file"]
        RUN <<END
        echo one
        echo two >&2
        END
        USER 33:44
        RUN id -u > /tmp/who; id -g >> /tmp/who
        LABEL a=b
        CMD ["sh", "main.sh"]
    """.replace("\n        ", "\n")
    files = [file("main.sh", "echo $GREETING\n"), file("conf.a", "A"), file("conf.b", "Qg==", encoding="base64"), file("other", "-")]
    image = made(node, build(node, text, files=files, buildArgs={"WHO": "me"}, name="app", tags=["1", "latest"]))
    assert (image["name"], image["tags"], image["workdir"], image["source"]["kind"]) == ("app", ["1", "latest"], "/srv/app", "dockerfile")
    assert image["env"]["GREETING"] == "hello me" and "WHO" not in image["env"] and image["sizeBytes"] > 0
    lines = {(line["stream"], line["text"]) for line in log_of(node, image)}
    assert {("stdout", "done"), ("stdout", "one"), ("stderr", "two"), ("build", "USER 33:44")} - lines == {("build", "USER 33:44")}, lines
    with runtime.sandboxes.create(image="app:1", user="root") as sandbox:
        def said(command):
            return sandbox.exec(command).stdout
        assert said("pwd; ls; cat built; sh main.sh") == "/srv/app\na file\nbuilt\nconf.a\nconf.b\nmain.sh\nbuilt for me in /srv/app\nhello me\n"
        assert said("cat conf.b; stat -c '%a %u' main.sh conf.a; cat /tmp/who") == "B750 0\n750 0\n33\n44\n"
        copy = sandbox.fork()
        assert copy.exec("cat built").stdout == "built for me in /srv/app\n"
        copy.delete()
    assert runtime.sandboxes.list(include_stopped=True).to_list() == [], "a build leaves no sandbox"


def test_stages_and_images_are_copied_from(node, runtime, base):
    text = """FROM base AS make
RUN mkdir -p /out/deep && echo a > /out/a && echo b > /out/deep/b && ln -s a /out/link && ln /out/a /out/hard && chown -R 5:6 /out && chmod 701 /out/deep
RUN touch -d @1000000000 /out/a && echo single > /single
FROM base AS unused
RUN exit 9
FROM make AS more
RUN echo c > /out/c
FROM base
COPY --from=more /out /kept
COPY --from=make --chown=7:8 /out/deep/b /single /two/
COPY --from=0 /ou*/a /by-pattern
COPY --from=base /etc/motd /motd
"""
    image = made(node, build(node, text))
    seen = in_image(runtime, image, "cd /kept; ls; stat -c '%a %u %g %n' deep; stat -c '%a %u %g %h %n' a hard; readlink link; stat -c %Y a; cat c; "
                    "cd /two; stat -c '%u %g %n' *; cat /by-pattern/a /motd", user="root")
    assert seen == ("a\nc\ndeep\nhard\nlink\n701 0 0 deep\n644 0 0 2 a\n644 0 0 2 hard\na\n1000000000\nc\n"
                    "7 8 b\n7 8 single\na\nhello from the image\n")
    image = made(node, build(node, text, target="more"))
    assert in_image(runtime, image, "cat /out/a /out/c; ls /kept 2>&1 | wc -l") == "a\nc\n1\n"


def test_a_context_comes_as_an_archive(node, runtime, base):
    inner = tar_of([("in/side", b"unpacked", {"uid": 9, "gid": 9})])
    context = tar_of([
        ("./", None, {"mode": 0o700}), ("./src", None, {}), ("./src/x.py", b"x", {"mode": 0o755}), ("./src/x.pyc", b"-", {}),
        ("./src/lib", None, {}), ("./src/lib/y.py", b"y", {"mtime": 5}), ("./secret", b"s", {}), ("./in.tar", inner, {}), ("./plain", b"p", {}),
        ("./up", b"", {"type": tarfile.SYMTYPE, "linkname": "../../etc/passwd"}), ("./" + "n" * 200, b"long", {}),
    ])
    text = "FROM base\nRUN mkdir /real && ln -s real /led && chmod 711 /real\nCOPY . /app/\nCOPY src /led\nADD in.tar plain /opt/\nCOPY in.tar /as-it-is\n"
    image = made(node, build(node, text, context=sent(node, context), dockerignore="**/*.pyc\nsecret\n"))
    seen = in_image(runtime, image, "cd /app; ls | wc -l; ls src src/lib; stat -c '%a %u' . src/x.py; readlink up; cat n*; "
                    "stat -c '%a %F' /real /led; ls /real; cat /opt/in/side /opt/plain; stat -c '%u' /opt/in/side; wc -c < /as-it-is", user="root")
    assert seen == ("5\nsrc:\nlib\nx.py\n\nsrc/lib:\ny.py\n755 0\n755 0\n../../etc/passwd\nlong"
                    f"711 directory\n777 symbolic link\nlib\nx.py\nunpackedp9\n{len(inner)}\n")


def test_equal_builds_are_made_once(node, runtime, base):
    text = "FROM base\nCOPY a /a\nRUN cat /proc/sys/kernel/random/uuid > /made\n"
    first = made(node, build(node, text, files=[file("a", "1")]))
    again = made(node, build(node, text, files=[file("a", "1")]))
    assert again["id"] != first["id"] and again["source"]["identity"] == first["source"]["identity"]
    assert any(first["id"] in line["text"] for line in log_of(node, again))
    others = [made(node, build(node, text, files=[file("a", "2")])), made(node, build(node, text, files=[file("a", "1")], cache=False))]
    seen = {in_image(runtime, image, "cat /made") for image in [first, again, *others]}
    assert len(seen) == 3
    upon = made(node, build(node, f"FROM {first['id']}\nRUN echo more >> /made"))
    assert in_image(runtime, upon, "wc -l < /made") == "2\n"
    assert upon["source"]["identity"].startswith(first["source"]["identity"] + "+")


def test_the_hosts_own_files_are_a_base(node, runtime):
    image = made(node, build(node, "FROM host\nRUN python3 -c \"open('/etc/made','w').write('by python')\"\nWORKDIR /workspace/w\nCOPY a .", files=[file("a", "A")]))
    assert in_image(runtime, image, "cat /etc/made /workspace/w/a; pwd") == "by pythonA/workspace/w\n"


def test_a_recipe(node, runtime, base):
    recipe = {"base": "base", "commands": ["echo $A > /made; cat d/f >> /made"], "env": {"A": "$x"}, "workdir": "/w",
              "files": [{"path": "d/f", "content": "text", "mode": "700"}]}
    image = made(node, node.raw("POST", "/v1/images", {"recipe": recipe}).json)
    assert in_image(runtime, image, "pwd; cat /made; stat -c %a d/f") == "/w\n$x\ntext700\n"
    recipe = {"base": "base", "apt": ["jq"]}
    image = node.raw("POST", "/v1/images", {"recipe": recipe}).json
    ended = until(lambda: (now := node.raw("GET", f"/v1/images/{image['id']}").json)["state"] == "failed" and now, seconds=60)
    assert "apt-get" in ended["error"], "a base without apt-get cannot install"


def test_what_an_image_runs_is_there_at_the_create(node, runtime, base):
    serve = "mkdir -p /tmp/w && echo hi > /tmp/w/index.html && exec httpd -f -p 8080 -h /tmp/w"
    made(node, build(node, f"FROM base\nUSER 33\nHEALTHCHECK CMD wget -qO- 127.0.0.1:8080\nCMD {serve}", name="web"))
    with runtime.sandboxes.create(image="web") as sandbox:
        start = sandbox.info["start"]
        assert start["state"] == "ready" and start["readyMs"] > 0
        assert sandbox.process(start["processId"]).state == "running"
        assert sandbox.exec("wget -qO- 127.0.0.1:8080; stat -c %u /tmp/w").stdout == "hi\n33\n"
        copy = sandbox.fork()
        assert copy.exec("wget -qO- 127.0.0.1:8080").stdout == "hi\n" and copy.info.get("start") is None
        copy.delete()
    said = {"command": "echo $A > /tmp/said; exec sleep 1000", "readyPort": 1, "readyTimeoutSeconds": 1}
    for text, fields, expected in [
        ("FROM web", {"start": None}, None), ("FROM web", {"start": said, "env": {"A": "b"}}, "timeout"),
        ("FROM base\nCMD [\"sleep\", \"1000\"]", {}, "started"), ("FROM base\nCMD sh", {}, "started"), ("FROM base\nCMD [\"/bin/sh\"]", {}, None),
        ("FROM base\nHEALTHCHECK CMD false\nCMD exit 3", {}, "exited"),
    ]:
        image = made(node, build(node, text, **fields))
        with runtime.sandboxes.create(image=image["id"]) as sandbox:
            start = sandbox.info.get("start") or {}
            assert start.get("state") == expected, (text, start)
            if expected == "timeout":
                assert sandbox.exec("cat /tmp/said; stat -c %u /tmp/said").stdout == "b\n1000\n"
            if expected == "exited":
                assert start["exitCode"] == 3


@pytest.mark.parametrize("text, field, line", [
    ("RUN x", "dockerfile", 1), ("FROM base\nFOO x", "dockerfile", 2), ("FROM base\nONBUILD RUN x", "dockerfile", 2),
    ("FROM base\nRUN --mount=type=secret,id=x cat", "dockerfile", 2), ("", "dockerfile", None),
])
def test_what_is_no_dockerfile_is_refused_at_once(node, text, field, line):
    error = build(node, text, status=400)["error"]
    assert error["code"] == "invalid_request" and field in str(error), error
    assert line is None or f"line {line}" in error["message"], error


def test_what_is_no_recipe_is_refused_at_once(node):
    for recipe in [{"x": 1}, {"apt": ["-o"]}, {"files": [{"path": "/"}]}, {"commands": [""]}]:
        assert node.raw("POST", "/v1/images", {"recipe": recipe}).status == 400, recipe


def test_failures_say_where_and_leave_nothing(node, runtime, base):
    layers = set(pathlib.Path(node.state_dir).glob("pool/images/layers/*"))
    assert "line 3: `RUN exit 7` ended with 7" in failure(node, "FROM base\nRUN echo fine > /x\nRUN exit 7")
    assert "line 2: there is no `gone` to copy" in failure(node, "FROM base\nCOPY gone /x", files=[file("a", "")])
    assert "no user or group `nobody-here`" in failure(node, "FROM base\nUSER nobody-here\nRUN true")
    assert "scratch" in failure(node, "FROM scratch\nCOPY a /")
    assert "not done after 10 seconds" in failure(node, "FROM base\nRUN sleep 1000", build={"timeoutSeconds": 10})
    assert "maxImageMiB" in failure(node, "FROM base\nRUN head -c 3000000 /dev/urandom > /x", build={"maxImageMiB": 1})
    assert runtime.sandboxes.list(include_stopped=True).to_list() == []
    assert set(pathlib.Path(node.state_dir).glob("pool/images/layers/*")) == layers


def test_a_node_that_was_killed_leaves_no_build():
    with Node() as node:
        made(node, send(node, busybox(), name="base"))
        image = build(node, "FROM base\nRUN echo begun; sleep 1000")
        until(lambda: any(line["text"] == "begun" for line in log_of(node, image)), seconds=30, what="the build runs")
        node.crash()
        node.start()
        now = node.raw("GET", f"/v1/images/{image['id']}").json
        assert (now["state"], now["error"]) == ("failed", "the node was restarted")
        assert node.raw("GET", "/v1/sandboxes?includeStopped=true").json["data"] == []

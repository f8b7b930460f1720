# The driver of a python context: cells come in as lines, what they print goes out as it is, and frames say the rest.
# A frame begins and ends with a record separator and carries the token of its cell, which the cell does not know.
import ast, asyncio, base64, builtins, inspect, io, json, linecache, os, signal, sys, traceback, types

_RS = "\x1e"


def _main():
    # The lines are not for the cells: what they read is nothing.
    lines = os.fdopen(os.dup(0), "r", encoding="ascii")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    out, err = os.dup(1), os.dup(2)
    os.environ.setdefault("MPLBACKEND", "Agg")
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    scope = module.__dict__
    state = {"busy": False, "count": 0, "token": "", "loop": None}

    def on_interrupt(*_):
        if state["busy"]:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)

    def write(fd, text):
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(fd, data):]

    def flush():
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass

    def frame(kind, **fields):
        flush()
        write(out, _RS + state["token"] + json.dumps({"k": kind, **fields}) + _RS)

    forms = (("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
             ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_latex_", "text/latex"),
             ("_repr_json_", "application/json"))

    def bundle(value):
        try:
            data = {"text/plain": repr(value)}
        except Exception as error:
            data = {"text/plain": f"<{type(value).__name__} whose repr failed: {error!r}>"}
        if isinstance(value, type):
            return data
        for name, mime in forms:
            try:
                method = getattr(value, name, None)
                made = method() if callable(method) else None
                if isinstance(made, tuple):
                    made = made[0]
                if isinstance(made, bytes):
                    made = base64.b64encode(made).decode("ascii")
                if made is not None:
                    json.dumps(made)
                    data[mime] = made
            except Exception:
                pass
        return data

    def display(*values):
        for value in values:
            frame("result", main=False, data=bundle(value))

    def figures():
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                picture = io.BytesIO()
                pyplot.figure(number).savefig(picture, format="png", bbox_inches="tight")
                text = base64.b64encode(picture.getvalue()).decode("ascii")
                frame("result", main=False, data={"text/plain": f"<Figure {number}>", "image/png": text})
            pyplot.close("all")
        except Exception:
            pass

    def evaluate(code):
        made = types.FunctionType(code, scope)()
        if inspect.iscoroutine(made):
            if state["loop"] is None:
                state["loop"] = asyncio.new_event_loop()
                asyncio.set_event_loop(state["loop"])
            made = state["loop"].run_until_complete(made)
        return made

    def run(source, name):
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        if tree.body:
            evaluate(compile(tree, name, "exec", flags=flags, dont_inherit=True))
        if last is not None:
            value = evaluate(compile(ast.Expression(last.value), name, "eval", flags=flags, dont_inherit=True))
            if value is not None:
                scope["_"] = value
                frame("result", main=True, data=bundle(value))

    def failure(error):
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
            trace = trace.tb_next
        lines_ = traceback.format_exception(type(error), error, trace)
        return {"name": type(error).__name__, "value": str(error), "traceback": "".join(lines_).splitlines()}

    scope["display"] = display
    sys.path.insert(0, "")
    for line in lines:
        verb, _, rest = line.strip().partition(" ")
        token, _, code = rest.partition(" ")
        if verb != "run":
            continue
        state["token"], state["count"] = token, state["count"] + 1
        name, status = f"<cell {state['count']}>", "ok"
        try:
            source = base64.b64decode(code).decode("utf-8", "replace")
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            state["busy"] = True
            try:
                run(source, name)
                figures()
            finally:
                state["busy"] = False
        except KeyboardInterrupt as error:
            status = "interrupted"
            frame("error", **failure(error))
        except BaseException as error:
            status = "error"
            frame("error", **failure(error))
        frame("done", status=status, count=state["count"])
        write(err, _RS + token + _RS)


_main()

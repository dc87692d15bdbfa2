"""What the examples do not show: errors, types, threads, exceptions in callbacks. Run with the wheel installed."""

import ast
import errno
import inspect
import io
import os
import pathlib
import pickle
import re
import threading

import butterfs


def disk():
    return butterfs.Device.memory(256 << 20)


def raises(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


def errors_are_os_errors():
    with butterfs.make(disk()) as filesystem:
        error = raises(OSError, lambda: filesystem.root.read("none"))
        assert isinstance(error, butterfs.Error)
        assert (error.errno, error.kind) == (errno.ENOENT, "NotFound") and "none" in error.strerror
        assert raises(butterfs.Error, lambda: filesystem.root.mkdir(".")).errno == errno.EINVAL
        raises(ValueError, lambda: filesystem.root.open("x", "rw"))
    raises(ValueError, lambda: filesystem.root)
    raises(TypeError, lambda: butterfs.open(5))
    assert raises(butterfs.Error, lambda: butterfs.open("/nowhere")).kind == "NotFound"


def names_are_bytes():
    with butterfs.make(disk()) as filesystem:
        name = os.fsdecode(b"\xff\xfe\n")
        filesystem.root.write(name, b"x")
        assert [entry.name for entry in filesystem.root.scandir()] == [name]
        assert filesystem.root.read(name) == b"x"


def paths_and_contents_have_several_types():
    with butterfs.make(disk()) as filesystem:
        root = filesystem.root
        root.write(b"\xff", bytearray(b"1"))
        root.write(pathlib.PurePath("b"), memoryview(b"abcdef")[1:5:2])
        assert [root.read(os.fsdecode(b"\xff")), root.read(b"b")] == [b"1", b"bd"]
        root.node(b"b").setxattr("user.x", bytearray(b"y"))
        root.create_subvolume(b"a")
        stream = io.BytesIO()
        filesystem.send(root.snapshot(b"a", b"c", read_only=True), stream)
        stream.seek(0)
        reader = type("Reader", (), {"read": lambda self, size: bytearray(stream.read(size))})()
        root.mkdir(b"received")
        assert root.open_dir(b"received").receive(reader) == ["c"]
        assert "str" in str(raises(TypeError, lambda: root.write("x", "text")))
        raises(TypeError, lambda: root.write("x", 5))
        raises(TypeError, lambda: root.write(5, b""))


def a_device_has_one_user_and_closing_ends_the_use():
    device = disk()
    filesystem = butterfs.make(device)
    root = filesystem.root
    root.write("x", b"1")
    file, entries = root.open("x", "r+"), root.scandir()
    for work in [lambda: butterfs.open(device), lambda: butterfs.check(device), lambda: butterfs.mkfs(device)]:
        assert raises(butterfs.Error, work).kind == "Busy"
    within = raises(butterfs.Error, lambda: filesystem.transaction(lambda tx: tx.close()))
    assert within.errno == errno.EBUSY
    root.write("y", b"1")
    filesystem.close()
    filesystem.close()
    for work in [
        lambda: root.read("x"),
        lambda: root.write("z", b""),
        lambda: file.write(b"2", 0),
        lambda: next(entries),
        lambda: filesystem.usage(),
        lambda: filesystem.send(5, io.BytesIO()),
        lambda: root.receive(io.BytesIO(b"")),
    ]:
        assert "closed" in str(raises(ValueError, work))
    assert butterfs.check(device).is_clean
    with butterfs.open(device) as filesystem:
        assert filesystem.root.read("y") == b"1"

    class ReadOnly:
        def size(self):
            return 256 << 20

        def read(self, offset, length):
            return bytes(length)

    read_only = butterfs.Device.custom(ReadOnly())
    assert raises(butterfs.Error, lambda: butterfs.mkfs(read_only)).errno == errno.EROFS


def errors_are_also_of_pythons_classes():
    with butterfs.make(disk()) as filesystem:
        root = filesystem.root
        root.mkdir("dir")
        root.write("file", b"")
        for kind, work in [
            (FileNotFoundError, lambda: root.read("none")),
            (FileExistsError, lambda: root.mkdir("dir")),
            (NotADirectoryError, lambda: root.read("file/x")),
            (IsADirectoryError, lambda: root.read("dir")),
            (PermissionError, lambda: root.link("dir", "other")),
        ]:
            error = raises(kind, work)
            assert isinstance(error, butterfs.Error) and error.errno in vars(errno).values(), error
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), again.errno, again.kind) == (type(error), error.errno, error.kind)
    for work in [lambda: butterfs.open("/nowhere/disk.img"), lambda: butterfs.check("/nowhere/disk.img")]:
        raises(FileNotFoundError, work)
    other = raises(butterfs.Error, lambda: butterfs.open(butterfs.Device.memory(256 << 20)))
    assert type(other) is butterfs.Error and type(pickle.loads(pickle.dumps(other))) is butterfs.Error


def attributes():
    with butterfs.make(disk(), uid=5, gid=6) as filesystem:
        root = filesystem.root
        root.write("file", b"12345")
        node = root.node("file")
        node.utime(mtime_ns=-1)
        node.setxattr("user.x", b"\0y")
        stat = node.stat()
        assert (stat.uid, stat.gid, stat.size, stat.mtime_ns, stat.kind) == (5, 6, 5, -1, "file")
        assert node.listxattr() == ["user.x"] and node.getxattr("user.x") == b"\0y" and node.getxattr("user.y") is None
        root.reflink("file", "copy")
        root.link("file", "other")
        assert root.stat("other").nlink == 2
        with root.open("copy", "r+") as file:
            assert file.read(1 << 40, 2) == b"345"
            assert file.write(b"x", 5) == 1 and file.stat().size == 6
            file.truncate(1)
        assert root.read("copy") == b"1"
        raises(ValueError, lambda: file.read(1, 0))


def an_open_filesystem_is_maintained():
    with butterfs.make(butterfs.Device.memory(1 << 30)) as filesystem:
        filesystem.root.write("file", b"x" * 100000)
        filesystem.set_label("other")
        assert filesystem.label == "other"
        filesystem.resize(512 << 20)
        assert filesystem.usage().total == 512 << 20
        filesystem.resize()
        assert raises(butterfs.Error, lambda: filesystem.resize(1 << 30, device=2)).kind == "NotFound"
        assert filesystem.scrub() == [] and filesystem.scrub(repair=False) == []
        assert filesystem.discard_free_space() > 0
        assert filesystem.root.read("file") == b"x" * 100000


def exceptions_in_callbacks_arrive():
    class Boom(Exception):
        pass

    def boom(*_):
        raise Boom

    class Broken:
        def size(self):
            return 256 << 20

        read = boom

    class Sink:
        write = boom

    with butterfs.make(disk()) as filesystem:
        filesystem.root.create_subvolume("a")
        snapshot = filesystem.root.snapshot("a", "b", read_only=True)
        raises(Boom, lambda: filesystem.send(snapshot, io.BytesIO(), progress=boom))
        raises(Boom, lambda: filesystem.send(snapshot, Sink()))
        source = type("Source", (), {"read": boom})()
        raises(Boom, lambda: filesystem.root.receive(source))
        raises(Boom, lambda: filesystem.transaction(boom))
        assert raises(butterfs.StreamError, lambda: filesystem.root.receive(io.BytesIO(b"no stream"))).kind == "Stream"
    raises(OSError, lambda: butterfs.open(butterfs.Device.custom(Broken()), read_only=True))
    raises(Boom, lambda: butterfs.check(disk_with_filesystem(), progress=boom))


def disk_with_filesystem():
    device = disk()
    butterfs.mkfs(device)
    return device


def threads_do_not_block_each_other():
    """Objects are dropped in one thread while another one is in a transaction whose callback needs the interpreter."""
    with butterfs.make(disk()) as filesystem:
        root = filesystem.root
        root.mkdir("d")
        stop = threading.Event()

        def opens():
            while not stop.is_set():
                with root.open("d/file", "a") as file:
                    file.write(b"0123456789", 0)
                del file
                list(root.scandir("d"))
                root.node("d")

        threads = [threading.Thread(target=opens) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(20):
            filesystem.transaction(lambda tx: [tx.root.write(f"{number}-{part}", b"x") for part in range(5)])
        stop.set()
        for thread in threads:
            thread.join()
        assert root.stat("d/file").size % 10 == 0
        assert sum(1 for entry in root.scandir()) == 101


def described(text):
    return " ".join((text or "").split())


def the_types_are_those_of_the_module():
    path = os.path.join(os.path.dirname(butterfs.__file__), "__init__.pyi")
    assert os.path.exists(os.path.join(os.path.dirname(path), "py.typed"))
    with open(path) as file:
        text = file.read()
    classes = dict(re.findall(r"^class (\w+)[^\n]*:\n(.*?)(?=^\S|\Z)", text, re.M | re.S))
    descriptions = {
        (kind.name, member.name): ast.get_docstring(member)
        for kind in ast.parse(text).body
        if isinstance(kind, ast.ClassDef)
        for member in kind.body
        if isinstance(member, ast.FunctionDef)
    }
    descriptions |= {
        kind.name: ast.get_docstring(kind) for kind in ast.parse(text).body if isinstance(kind, ast.FunctionDef)
    }
    for name in butterfs.__all__:
        thing = getattr(butterfs, name)
        if not inspect.isclass(thing):
            assert name == "__version__" or re.search(rf"^def {name}\(", text, re.M), name
            assert name == "__version__" or described(thing.__doc__) == described(descriptions[name]), name
            continue
        declared = set(re.findall(r"^    def (\w+)|^    (?=kind|device)", classes[name], re.M)) - {""}
        if issubclass(thing, OSError):
            continue
        real = {member for member in vars(thing) if not member.startswith("__") or member in ("__enter__", "__exit__")}
        real |= {member for member in ("__iter__", "__next__") if member in vars(thing)}
        assert declared == real, (name, declared ^ real)
        for member in declared:
            function = getattr(thing, member)
            if member.startswith("__") or not callable(function):
                continue
            wanted = re.search(rf"^    def {member}\((.*?)\) ->", classes[name], re.M | re.S).group(1)
            wanted = re.findall(r"(\w+):", re.sub(r"\[[^\]]*\]", "", wanted))
            got = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            assert got == wanted, (name, member, got, wanted)
            assert function.__doc__, f"{name}.{member} has no description"
            assert described(function.__doc__) == described(descriptions[name, member]), (name, member)


for test in [
    errors_are_os_errors,
    names_are_bytes,
    paths_and_contents_have_several_types,
    a_device_has_one_user_and_closing_ends_the_use,
    attributes,
    an_open_filesystem_is_maintained,
    exceptions_in_callbacks_arrive,
    threads_do_not_block_each_other,
    the_types_are_those_of_the_module,
]:
    test()
    print(f"{test.__name__}: ok")

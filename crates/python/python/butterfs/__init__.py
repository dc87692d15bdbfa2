"""btrfs in userspace: make, read, change, send, receive and check btrfs filesystems.

>>> import butterfs
>>> disk = butterfs.Device.memory(256 << 20)
>>> filesystem = butterfs.make(disk)
>>> filesystem.root.write("greeting", b"hello")
>>> filesystem.root.read("greeting")
b'hello'
>>> filesystem.close()
"""

import os as _os

from ._butterfs import (
    Device,
    Dir,
    DirEntry,
    Entries,
    Error,
    File,
    Filesystem,
    Finding,
    Node,
    Report,
    Stat,
    StreamError,
    Subvolume,
    Usage,
    __version__,
    check,
    mkfs,
    open,
)

__all__ = [
    "Device",
    "Dir",
    "DirEntry",
    "Entries",
    "Error",
    "File",
    "Filesystem",
    "Finding",
    "Node",
    "Report",
    "Stat",
    "StreamError",
    "Subvolume",
    "Usage",
    "__version__",
    "check",
    "make",
    "mkfs",
    "open",
    "walk",
]


def make(device, *, size=None, label=None, overwrite=False, **options):
    """Makes a filesystem and opens it. With `size`, `device` is the path of a new, sparse file."""
    if size is not None:
        device = Device.create(device, size)
    mkfs(device, label=label, overwrite=overwrite)
    return open(device, **options)


def walk(directory, path="."):
    """All files and directories below a directory, as pairs of path and entry. Symbolic links are not followed."""
    waiting = [_os.fspath(path)]
    while waiting:
        below = waiting.pop()
        for entry in directory.scandir(below):
            full = entry.name if below == "." else _os.path.join(below, entry.name)
            yield full, entry
            if entry.kind == "directory":
                waiting.append(full)

import os
from typing import Any, Callable, Iterator, Literal, Optional, Protocol, Sequence, Tuple, TypeVar, Union, final

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Bytes = Union[bytes, bytearray, memoryview]
_T = TypeVar("_T")
_Kind = Literal["file", "directory", "symlink", "block", "char", "fifo", "socket", "unknown"]

__version__: str

class Error(OSError):
    """A filesystem operation failed.

    Where Python has a class for the errno (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError,
    IsADirectoryError), the error is of that class too. Use of a closed filesystem is a ValueError.
    """
    kind: str
    device: Optional[str]
    physical: Optional[int]
    logical: Optional[int]

class StreamError(OSError):
    """A stream cannot be made or received."""
    kind: str

class _Storage(Protocol):
    """A device of your own. It may also have write(offset, data) and flush()."""

    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> _Bytes: ...

class _Readable(Protocol):
    def read(self, size: int, /) -> _Bytes: ...

class _Writable(Protocol):
    def write(self, data: bytes, /) -> Any: ...

@final
class Device:
    """Storage that holds a filesystem: Device.path, Device.create, Device.memory or Device.custom."""
    @staticmethod
    def path(path: _Path) -> Device:
        """A file or block device; it is opened, and locked, when it is used."""
    @staticmethod
    def create(path: _Path, size: int) -> Device:
        """A new, sparse file of `size` bytes."""
    @staticmethod
    def memory(size: int) -> Device:
        """`size` bytes of memory, all zero."""
    @staticmethod
    def custom(object: _Storage) -> Device:
        """An object with the methods size() and read(offset, length), and perhaps write(offset, data) and flush()."""
    def window(self, start: int, size: int) -> Device:
        """The bytes from `start` on, `size` of them: a partition of a disk image, for example."""

_DeviceOrPath = Union[Device, _Path]
_Devices = Union[_DeviceOrPath, Sequence[_DeviceOrPath]]

@final
class Stat:
    """Attributes of an inode. Times are nanoseconds since 1970."""
    @property
    def subvolume(self) -> int: ...
    @property
    def ino(self) -> int: ...
    @property
    def kind(self) -> _Kind: ...
    @property
    def size(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    @property
    def mode(self) -> int: ...
    @property
    def nlink(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def atime_ns(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def ctime_ns(self) -> int: ...
    @property
    def btime_ns(self) -> int: ...

@final
class DirEntry:
    """An entry of a directory."""
    @property
    def name(self) -> str:
        """The name. Bytes that are not UTF-8 appear as surrogates, as in os.listdir."""
    @property
    def kind(self) -> _Kind:
        """"file", "directory", "symlink", "block", "char", "fifo", "socket" or "unknown"."""
    @property
    def subvolume(self) -> int:
        """The subvolume of its inode."""
    @property
    def ino(self) -> int:
        """The number of its inode."""

@final
class Entries:
    """The entries of a directory, one by one."""
    def __iter__(self) -> Iterator[DirEntry]: ...
    def __next__(self) -> DirEntry: ...

@final
class Subvolume:
    """A subvolume or snapshot."""
    @property
    def id(self) -> int: ...
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def uuid(self) -> Optional[str]: ...
    @property
    def parent_uuid(self) -> Optional[str]: ...
    @property
    def received_uuid(self) -> Optional[str]: ...
    @property
    def generation(self) -> int: ...

@final
class Usage:
    """The space of a filesystem, in bytes."""
    @property
    def total(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def available(self) -> int: ...

@final
class Finding:
    """Something that the checker found."""
    @property
    def id(self) -> str:
        """A word that names the kind and never changes its meaning."""
    @property
    def is_error(self) -> bool:
        """True for an error, false for a warning."""
    @property
    def message(self) -> str:
        """One sentence with place and values."""

@final
class Report:
    """The result of a check."""
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def errors(self) -> int: ...
    @property
    def warnings(self) -> int: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def is_clean(self) -> bool: ...

@final
class Node:
    """A file, directory, symbolic link or special file: its attributes, not its content. See Dir.node."""
    def stat(self) -> Stat:
        """Type, size, permissions, owner and times."""
    def chmod(self, mode: int) -> None:
        """Sets the permissions."""
    def chown(self, uid: int, gid: int) -> None:
        """Sets user and group. A file loses its set-user-id bit."""
    def utime(self, *, atime_ns: Optional[int] = None, mtime_ns: Optional[int] = None) -> None:
        """Sets the times of the last access and the last change, in nanoseconds since 1970; None leaves one as it
        is."""
    def readlink(self) -> os.PathLike[str]:
        """The target of a symbolic link."""
    def getxattr(self, name: str) -> Optional[bytes]:
        """The value of an extended attribute; None if there is none."""
    def setxattr(self, name: str, value: _Bytes) -> None:
        """Sets an extended attribute."""
    def removexattr(self, name: str) -> None:
        """Removes an extended attribute."""
    def listxattr(self) -> list[str]:
        """The names of all extended attributes."""
    def fsync(self) -> None:
        """Makes the inode durable."""

@final
class File:
    """An open file, read and written at offsets. Use it in a `with` block, or call close()."""
    def read(self, size: int, offset: int) -> bytes:
        """Reads `size` bytes at an offset, fewer only at the end of the file."""
    def write(self, data: _Bytes, offset: int) -> int:
        """Writes all bytes at an offset, or at the end if the file was opened for appending."""
    def truncate(self, size: int) -> None:
        """Sets the size."""
    def stat(self) -> Stat:
        """Size, permissions, owner and times."""
    def node(self) -> Node:
        """The file's attributes."""
    def fsync(self) -> None:
        """Makes content, attributes and names durable."""
    def close(self) -> None:
        """Closes it. Makes nothing durable."""
    def __enter__(self) -> File: ...
    def __exit__(self, *details: object) -> None: ...

@final
class Dir:
    """A directory of a filesystem. Paths begin at it and never lead out of it."""
    def open_dir(self, path: _Path) -> Dir:
        """A directory below this one, as the root of its own paths."""
    def scandir(self, path: _Path = ".") -> Entries:
        """The entries of a directory, without "." and ".."."""
    def open(
        self, path: _Path, mode: Literal["r", "r+", "w", "a", "x"] = "r", permissions: int = 0o644
    ) -> File:
        """Opens a file: 'r' reads, 'r+' reads and writes, 'w' makes or empties, 'a' appends, 'x' makes a new one."""
    def read(self, path: _Path) -> bytes:
        """The content of a file."""
    def write(self, path: _Path, data: _Bytes) -> None:
        """Makes a file with this content, or replaces the content of one that exists."""
    def mkdir(self, path: _Path, mode: int = 0o755, *, parents: bool = False) -> None:
        """Makes a directory; with `parents` also those above it, and it may exist."""
    def symlink(self, target: _Path, path: _Path) -> None:
        """Makes a symbolic link at `path` that leads to `target`."""
    def readlink(self, path: _Path) -> os.PathLike[str]:
        """The target of a symbolic link."""
    def link(self, original: _Path, path: _Path) -> None:
        """Gives a file another name."""
    def rename(self, old: _Path, new: _Path, how: Literal["replace", "keep", "exchange"] = "replace") -> None:
        """Renames. `how`: "replace", "keep" (fails if the new name exists) or "exchange"."""
    def unlink(self, path: _Path) -> None:
        """Removes a name of something that is not a directory."""
    def rmdir(self, path: _Path) -> None:
        """Removes an empty directory."""
    def rmtree(self, path: _Path) -> None:
        """Removes a directory and everything in it. Symbolic links are not followed."""
    def exists(self, path: _Path) -> bool:
        """Returns true if a path leads to something."""
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> Stat:
        """Attributes of what a path leads to."""
    def node(self, path: _Path, *, follow_symlinks: bool = True) -> Node:
        """The node that a path leads to, for its attributes."""
    def reflink(self, old: _Path, new: _Path) -> None:
        """Makes a file at `new` that shares the content of the file at `old`."""
    def create_subvolume(self, path: _Path) -> int:
        """Makes an empty subvolume and returns its id."""
    def snapshot(self, source: _Path, path: _Path, *, read_only: bool = False) -> int:
        """Makes a snapshot of the subvolume at `source` and returns its id. It is durable then."""
    def delete_subvolume(self, path: _Path) -> None:
        """Deletes a subvolume with everything in it."""
    def subvolume_id(self, path: _Path) -> int:
        """The id of the subvolume whose root a path is."""
    def receive(
        self, stream: _Readable, *, progress: Optional[Callable[[int], Optional[bool]]] = None
    ) -> list[str]:
        """Receives streams from an object with read(size) as subvolumes in this directory, and returns their names.
        `progress` is called with the bytes read so far; if it returns False, or raises, the receive ends."""

@final
class Filesystem:
    """An open filesystem. Use it in a `with` block, or call close(), which reports errors."""
    @property
    def root(self) -> Dir:
        """The root directory of the subvolume that was opened."""
    @property
    def uuid(self) -> str:
        """The UUID."""
    @property
    def label(self) -> str:
        """The label."""
    @property
    def notes(self) -> list[str]:
        """Sentences about the way it was opened that a user should see."""
    def subvolume_root(self, id: int) -> Dir:
        """The root directory of any subvolume."""
    def usage(self) -> Usage:
        """The space of the filesystem."""
    def set_label(self, label: str) -> None:
        """Changes the label; durable when this returns."""
    def resize(self, size: Optional[int] = None, *, device: int = 1) -> None:
        """Resizes a device, by its number, to so many bytes, or to all that it has. Data behind the new end moves
        first."""
    def discard_free_space(self, least: int = 0) -> int:
        """Tells the devices which space is free, in runs of at least `least` bytes, so that image files shrink. Returns
        the bytes that they discarded."""
    def scrub(self, *, repair: bool = True) -> list[str]:
        """Verifies every block in use, and repairs bad copies unless `repair` is False. Returns a sentence for each
        damaged place."""
    def subvolumes(self) -> list[Subvolume]:
        """All subvolumes by id, the top level included."""
    def set_read_only(self, id: int, read_only: bool) -> None:
        """Makes a subvolume read-only or writable."""
    def set_default_subvolume(self, id: int) -> None:
        """Chooses the subvolume that is opened and mounted if none is named."""
    def send(
        self,
        snapshot: int,
        stream: _Writable,
        *,
        parent: Optional[int] = None,
        version: Literal[1, 2] = 1,
        compressed: bool = False,
        progress: Optional[Callable[[int], Optional[bool]]] = None,
    ) -> int:
        """Sends a read-only snapshot to an object with write(data): as a whole, or as the difference from `parent`.
        Returns the bytes of the stream. `progress` is called with the bytes so far; if it returns False, or raises,
        the send ends."""
    def transaction(self, work: Callable[[Filesystem], _T]) -> _T:
        """Calls `work` with this filesystem and returns its result. All changes that it makes are durable then; if it
        raises, none of them was made. Other threads that use the filesystem wait meanwhile, and `work` must not wait
        for them."""
    def sync(self) -> None:
        """Makes everything durable that was done before."""
    def close(self) -> None:
        """Makes everything durable and closes it, with all files and directories that are still open. Within a
        transaction it is refused."""
    def __enter__(self) -> Filesystem: ...
    def __exit__(self, *details: object) -> None: ...

def mkfs(devices_or_paths: _Devices, *, label: Optional[str] = None, overwrite: bool = False) -> str:
    """Makes a filesystem on one or several devices and returns its UUID."""

def open(
    devices_or_paths: _Devices,
    *,
    read_only: bool = False,
    subvolume: Optional[_Path] = None,
    ignore_log: bool = False,
    allow_missing: bool = False,
    compression: str = "none",
    uid: int = 0,
    gid: int = 0,
) -> Filesystem:
    """Opens the filesystem on one or several devices. `subvolume` is the path of the one that becomes the root.
    `ignore_log` changes no byte and shows nothing that only a log has; `allow_missing` opens a filesystem that has lost
    devices. New files belong to `uid` and `gid` and are compressed by `compression`: "none", "zstd", "zlib" or "lzo",
    perhaps with ":LEVEL"."""

def make(
    device: _Devices,
    *,
    size: Optional[int] = None,
    label: Optional[str] = None,
    overwrite: bool = False,
    read_only: bool = False,
    compression: str = "none",
    uid: int = 0,
    gid: int = 0,
) -> Filesystem:
    """Makes a filesystem and opens it. With `size`, `device` is the path of a new, sparse file."""

def check(
    devices_or_paths: _Devices,
    *,
    data: bool = False,
    progress: Optional[Callable[[str, int, int], Any]] = None,
) -> Report:
    """Checks the filesystem on one or several devices, which is not open. With `data` all data is read too. `progress`
    is called with a word for the stage, its number and the number of stages."""

def walk(directory: Dir, path: _Path = ".") -> Iterator[Tuple[str, DirEntry]]:
    """All files and directories below a directory, as pairs of path and entry. Symbolic links are not followed."""

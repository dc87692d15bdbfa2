"""Reads one file out of a disk image, where the filesystem is in a partition."""

import os
import sys
import tempfile

import butterfs

START, SIZE = 1 << 20, 256 << 20


def read(disk, start, size, path):
    """Reads a file and changes nothing, not even if the filesystem was not unmounted cleanly."""
    partition = butterfs.Device.path(disk).window(start, size)
    with butterfs.open(partition, read_only=True, ignore_log=True) as filesystem:
        return filesystem.root.read(path)


def main():
    if len(sys.argv) == 5:
        disk, start, size, path = sys.argv[1:]
        sys.stdout.buffer.write(read(disk, int(start), int(size), path))
        return
    with tempfile.TemporaryDirectory() as folder:
        disk = os.path.join(folder, "disk.img")
        partition = butterfs.Device.create(disk, START + SIZE + (1 << 20)).window(START, SIZE)
        with butterfs.make(partition) as filesystem:
            filesystem.root.write("hostname", b"example\n")
        del partition, filesystem  # they hold the lock on the image
        content = read(disk, START, SIZE, "hostname")
        print(content.decode(), end="")
        assert content == b"example\n"


if __name__ == "__main__":
    main()

"""Makes a disk image and fills it, without root and without a mount."""

import os
import tempfile

import butterfs


def main():
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "root.img")
        # The file is sparse: it takes the space of what is written to it.
        with butterfs.make(image, size=1 << 30, label="rootfs", compression="zstd:3") as filesystem:
            fill(filesystem)
            usage = filesystem.usage()
            print(f"{usage.used} of {usage.total} bytes are used")
        # Leaving the block has closed the filesystem: everything is durable.
        assert butterfs.check(image).is_clean


def fill(filesystem):
    # The usual layout: a subvolume that is mounted as /, so that it can be exchanged for a snapshot.
    system = filesystem.root.create_subvolume("@")
    filesystem.set_default_subvolume(system)
    root = filesystem.subvolume_root(system)
    root.mkdir("etc/init.d", parents=True)
    root.mkdir("usr/bin", parents=True)
    root.mkdir("tmp", 0o1777)
    root.write("etc/hostname", b"example\n")
    root.symlink("usr/bin", "bin")
    root.write("bin/hello", b"#!/bin/sh\necho hello\n")  # follows the link, inside of the image
    root.node("bin/hello").chmod(0o755)
    root.mkdir("home/ada", parents=True)
    root.node("home/ada").chown(1000, 1000)
    assert root.stat("usr/bin/hello").mode == 0o755


if __name__ == "__main__":
    main()

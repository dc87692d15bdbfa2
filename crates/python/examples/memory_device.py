"""A filesystem in memory: for tests, and for images that are uploaded instead of stored."""

import butterfs


def main():
    # Only what is written takes memory, whatever the size.
    disk = butterfs.Device.memory(4 << 30)
    with butterfs.make(disk) as filesystem:
        root = filesystem.root
        root.write("state", b"kept in memory")
        with root.open("log", "a") as log:
            log.write(b"first\n", 0)
            log.write(b"second\n", 0)  # a file that was opened for appending is written at its end
        for path, entry in butterfs.walk(root):
            print(path, entry.kind)
    # The device outlives the filesystem.
    with butterfs.open(disk, read_only=True) as filesystem:
        assert filesystem.root.read("state") == b"kept in memory"
        assert filesystem.root.read("log") == b"first\nsecond\n"


if __name__ == "__main__":
    main()

"""Makes snapshots and sends them: the first as a whole, the second as the difference from the first."""

import os
import tempfile

import butterfs


def main():
    with tempfile.TemporaryDirectory() as folder:
        with butterfs.make(os.path.join(folder, "disk.img"), size=512 << 20) as filesystem:
            root = filesystem.root
            root.create_subvolume("home")
            root.write("home/letter", b"Dear Ada,\n")
            root.write("home/photo", bytes(range(256)) * 12_000)
            # Only read-only snapshots can be sent. When this returns, the snapshot is durable.
            monday = root.snapshot("home", "monday", read_only=True)
            root.write("home/letter", b"Dear Ada,\nthank you for the book.\n")
            tuesday = root.snapshot("home", "tuesday", read_only=True)

            with open(os.path.join(folder, "monday.stream"), "wb") as stream:
                full = filesystem.send(monday, stream, version=2)
            with open(os.path.join(folder, "tuesday.stream"), "wb") as stream:
                difference = filesystem.send(tuesday, stream, parent=monday, version=2)
            print(f"monday: {full} bytes, tuesday: {difference} bytes")
            assert difference < full // 100


if __name__ == "__main__":
    main()

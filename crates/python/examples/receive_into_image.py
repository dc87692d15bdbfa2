"""Receives send streams into an image, as a backup server would."""

import io

import butterfs


def streams():
    """A snapshot and its successor, as streams."""
    with butterfs.make(butterfs.Device.memory(256 << 20)) as source:
        root = source.root
        root.create_subvolume("home")
        root.write("home/letter", b"draft")
        monday = root.snapshot("home", "monday", read_only=True)
        root.write("home/letter", b"final")
        tuesday = root.snapshot("home", "tuesday", read_only=True)
        first, second = io.BytesIO(), io.BytesIO()
        source.send(monday, first)
        source.send(tuesday, second, parent=monday)
        return first.getvalue(), second.getvalue()


def main():
    first, second = streams()
    with butterfs.make(butterfs.Device.memory(256 << 20), label="backups") as filesystem:
        backups = filesystem.root
        # A difference needs its parent.
        try:
            backups.receive(io.BytesIO(second))
            raise AssertionError("the parent is not there")
        except butterfs.StreamError as error:
            print(f"without its parent: {error.kind}: {error}")
        print("received", backups.receive(io.BytesIO(first)), backups.receive(io.BytesIO(second)))
        assert backups.read("monday/letter") == b"draft"
        assert backups.read("tuesday/letter") == b"final"
        received = [subvolume for subvolume in filesystem.subvolumes() if subvolume.received_uuid]
        assert [str(subvolume.path) for subvolume in received] == ["monday", "tuesday"]


if __name__ == "__main__":
    main()

"""Watches the progress of long operations, and stops one of them."""

import io

import butterfs


def main():
    disk = butterfs.Device.memory(512 << 20)
    with butterfs.make(disk) as filesystem:
        root = filesystem.root
        root.create_subvolume("data")
        for number in range(8):
            root.write(f"data/{number}", bytes([number]) * (2 << 20))
        snapshot = root.snapshot("data", "snapshot", read_only=True)

        reports = []
        stream = io.BytesIO()
        filesystem.send(snapshot, stream, progress=reports.append)
        print(f"{len(reports)} reports, the last one of {reports[-1]} bytes")
        assert reports == sorted(reports) and reports[-1] == len(stream.getvalue())

        # False ends the work at the next report, and so does an exception.
        try:
            filesystem.send(snapshot, io.BytesIO(), progress=lambda sent: sent < 4_000_000)
            raise AssertionError("it must stop")
        except butterfs.StreamError as error:
            assert error.kind == "Stopped"

        root.mkdir("received")
        root.open_dir("received").receive(
            io.BytesIO(stream.getvalue()), progress=lambda got: print(f"received {got} bytes")
        )

    report = butterfs.check(disk, data=True, progress=lambda stage, number, of: print(f"[{number}/{of}] {stage}"))
    assert report.is_clean


if __name__ == "__main__":
    main()

"""Checks a filesystem, its data included, and shows what the checker says about damage."""

import os
import sys
import tempfile

import butterfs


def show(report):
    print(f"{report.errors} errors, {report.warnings} warnings")
    for finding in report.findings:
        print(f"  {finding.message} [{finding.id}]")
    for note in report.notes:
        print(f"  note: {note}")


def main():
    if sys.argv[1:]:
        show(butterfs.check(sys.argv[1:], data=True))
        return
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "disk.img")
        with butterfs.make(image, size=256 << 20) as filesystem:
            filesystem.root.write("poem", b"So much depends upon a red wheel barrow. " * 1000)
        report = butterfs.check(image, data=True)
        show(report)
        assert report.is_clean

        with open(image, "r+b") as disk:
            at = disk.read().index(b"wheel barro")
            disk.seek(at)
            disk.write(b"wheelbarrow")
        report = butterfs.check(image, data=True)
        show(report)
        assert not report.is_clean and report.findings[0].is_error


if __name__ == "__main__":
    main()

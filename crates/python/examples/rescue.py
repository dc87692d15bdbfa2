"""Opens a broken filesystem read-only and saves what is still good. Nothing is written to the devices."""

import os
import sys
import tempfile

import butterfs


def save(root):
    saved, lost = 0, 0
    for path, entry in butterfs.walk(root):
        if entry.kind != "file":
            continue
        try:
            root.read(path)  # write it somewhere else here
            saved += 1
        except butterfs.Error as error:
            print(f"{error} (device {error.device}, byte {error.physical})")
            lost += 1
    return saved, lost


def broken(folder):
    """An image in which the content of one file is damaged."""
    image = os.path.join(folder, "disk.img")
    with butterfs.make(image, size=256 << 20) as filesystem:
        filesystem.root.mkdir("letters")
        for name in ["one", "two", "three"]:
            filesystem.root.write(f"letters/{name}", f"this is letter {name}. ".encode() * 500)
    with open(image, "r+b") as disk:
        at = disk.read().index(b"is letter two.")
        disk.seek(at)
        disk.write(b"damaged bytes!")
    return image


def main():
    with tempfile.TemporaryDirectory() as folder:
        devices = sys.argv[1:] or [broken(folder)]
        with butterfs.open(devices, read_only=True, ignore_log=True, allow_missing=True) as filesystem:
            for note in filesystem.notes:
                print(f"note: {note}")
            saved, lost = save(filesystem.root)
        print(f"{saved} files are good, {lost} are damaged")
        assert sys.argv[1:] or (saved, lost) == (2, 1)


if __name__ == "__main__":
    main()

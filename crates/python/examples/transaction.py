"""Several operations in one transaction: an update that a crash, or a failing step, cannot leave half done."""

import butterfs


class NoConfiguration(Exception):
    pass


def install(filesystem, program, config):
    """Puts a new version in the place of the old one."""
    root = filesystem.root
    root.mkdir("app.new")
    root.write("app.new/program", program)
    if config is None:
        raise NoConfiguration("the new version has no configuration")
    root.write("app.new/config", config)
    root.rename("app", "app.new", "exchange")
    root.rmtree("app.new")


def main():
    with butterfs.make(butterfs.Device.memory(256 << 20)) as filesystem:
        root = filesystem.root
        root.mkdir("app")
        root.write("app/program", b"version 1")
        root.write("app/config", b"for version 1")

        # An exception takes everything back.
        try:
            filesystem.transaction(lambda tx: install(tx, b"version 2", None))
            raise AssertionError("it must fail")
        except NoConfiguration as error:
            print(f"the first try failed: {error}")
        assert root.read("app/program") == b"version 1"
        assert not root.exists("app.new")

        # When this has returned, both files are new, also after a crash. No crash shows one without the other.
        filesystem.transaction(lambda tx: install(tx, b"version 2", b"for version 2"))
        assert root.read("app/program") == b"version 2"
        assert root.read("app/config") == b"for version 2"


if __name__ == "__main__":
    main()

"""A device of one's own: an image on a web server, read by range requests through a cache.

It brings its own web server on the loopback interface.
"""

import http.client
import http.server
import os
import tempfile
import threading

import butterfs

BLOCK = 256 << 10
CACHED_BLOCKS = 64


class HttpDevice:
    """The bytes of one URL. Methods are called from several threads."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.cache = {}
        self.requests = 0
        self.length = int(self.request("HEAD").headers["Content-Length"])

    def request(self, method, headers={}):
        connection = http.client.HTTPConnection(*self.address)
        connection.request(method, "/disk.img", headers=headers)
        self.requests += 1
        return connection.getresponse()

    def block(self, number):
        if number not in self.cache:
            first, last = number * BLOCK, min((number + 1) * BLOCK, self.length) - 1
            content = self.request("GET", {"Range": f"bytes={first}-{last}"}).read()
            if len(self.cache) >= CACHED_BLOCKS:
                self.cache.clear()
            self.cache[number] = content
            return content
        return self.cache.get(number) or self.block(number)

    def size(self):
        return self.length

    def read(self, offset, length):
        first, last = offset // BLOCK, (offset + length - 1) // BLOCK
        content = b"".join(self.block(number) for number in range(first, last + 1))
        return content[offset - first * BLOCK :][:length]


def serve(path):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(None)

        def do_GET(self):
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            with open(path, "rb") as disk:
                disk.seek(int(first))
                self.answer(disk.read(int(last) + 1 - int(first)))

        def answer(self, body):
            self.send_response(200 if body is None else 206)
            self.send_header("Content-Length", str(os.path.getsize(path) if body is None else len(body)))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main():
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "disk.img")
        with butterfs.make(image, size=1 << 30) as filesystem:
            filesystem.root.mkdir("docs")
            for number in range(4):
                filesystem.root.write(f"docs/{number}", bytes([number]) * 100_000)
        server = serve(image)
        device = HttpDevice(*server.server_address)
        with butterfs.open(butterfs.Device.custom(device), read_only=True, ignore_log=True) as filesystem:
            names = sorted(entry.name for entry in filesystem.root.scandir("docs"))
            assert names == ["0", "1", "2", "3"]
            assert filesystem.root.read("docs/2") == bytes([2]) * 100_000
        print(f"read one file of a disk of 1 GiB with {device.requests} requests")
        server.shutdown()


if __name__ == "__main__":
    main()

"""A small web server for the tests: gzip and ETags, as any real one has."""

import gzip
import hashlib
import http.server
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".ipynb": "application/x-ipynb+json",
    ".txt": "text/plain; charset=utf-8",
}
COMPRESSED = (".html", ".css", ".js", ".svg", ".ipynb", ".txt")


@cache
def compressed(body):
    return gzip.compress(body, 6)


def serve(folder):
    """A server of `folder` on a free port of 127.0.0.1; the caller runs and stops it."""
    folder = Path(folder).resolve()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = (folder / unquote(urlsplit(self.path).path).lstrip("/")).resolve()
            if path.is_dir():
                path = path / "index.html"
            status = 200
            if not path.is_file() or folder not in path.parents:
                path, status = folder / "404.html", 404
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            if status == 200 and self.headers.get("If-None-Match") == tag:
                self.send_response(304)
                self.send_header("ETag", tag)
                self.end_headers()
                return
            self.send_response(status)
            self.send_header("Content-Type", TYPES.get(path.suffix, "application/octet-stream"))
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "max-age=600")  # what GitHub Pages says
            if path.suffix in COMPRESSED:
                body = compressed(body)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

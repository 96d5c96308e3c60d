"""A gateway in a thread: passes requests on as they come, and answers of some paths not at all."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OF_ONE_HOP = ("host", "connection", "content-length", "transfer-encoding")


class Gateway:
    """Before a server of this machine. Use as a context manager.

    hidden: paths that are 404 here, as a gateway has no counts of the server behind it.
    """

    def __init__(self, port, hidden=("/server_info", "/metrics")):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path.split("?")[0] in hidden:
                    self.send_error(404)
                    return
                behind = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                try:
                    passed = {k: v for k, v in self.headers.items() if k.lower() not in OF_ONE_HOP}
                    behind.request(self.command, self.path, body, passed)
                    self.answer(behind.getresponse())
                except OSError:
                    self.close_connection = True
                finally:
                    behind.close()

            do_POST = do_GET

            def answer(self, response):
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in OF_ONE_HOP:
                        self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while piece := response.read1(65536):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()

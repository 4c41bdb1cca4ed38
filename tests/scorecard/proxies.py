"""nginx and HAProxy in front of a daemon, each on one connection to it that is kept open, as smuggling needs it."""

import json
import pathlib
import subprocess
import time

import raw_http
from frame import free_port


class Proxy:
    program = ""

    def __init__(self, folder, server):
        self.folder = pathlib.Path(folder) / self.program
        self.folder.mkdir(exist_ok=True)
        self.address = ("127.0.0.1", free_port())
        path = self.folder / "config"
        path.write_text(self.config(server))
        self.process = subprocess.Popen(self.command(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(100):
            try:
                raw_http.connect(self.address).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"{self.program} does not listen")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)


class Nginx(Proxy):
    program = "nginx"

    def config(self, server):
        return f"""daemon off; master_process off; pid {self.folder}/pid; error_log /dev/null;
events {{ worker_connections 512; }}
http {{ access_log off; client_body_temp_path {self.folder}; proxy_temp_path {self.folder}; fastcgi_temp_path {self.folder};
  uwsgi_temp_path {self.folder}; scgi_temp_path {self.folder};
  upstream lorad {{ server {server.host}:{server.port}; keepalive 1; }}
  server {{ listen 127.0.0.1:{self.address[1]}; ignore_invalid_headers off; underscores_in_headers on;
    location / {{ proxy_pass http://lorad; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; }} }} }}
"""

    def command(self, path):
        return ["nginx", "-p", str(self.folder), "-c", str(path)]


class Haproxy(Proxy):
    program = "haproxy"

    def config(self, server):
        return f"""global
  maxconn 512
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
  option accept-invalid-http-request
frontend in
  bind 127.0.0.1:{self.address[1]}
  default_backend lorad
backend lorad
  http-reuse always
  server one {server.host}:{server.port} pool-max-conn 1
"""

    def command(self, path):
        return ["haproxy", "-f", str(path), "-db"]


def count_mixed_up(address, cases, random):
    """Sends each case in one and two segments, and after it asks for something else: how often the answer was another request's."""
    n_wrong = 0
    for number, (_, request) in enumerate(cases):
        for n_segments in (1, 2):
            cut = random.randrange(1, len(request))
            raw_http.exchange(address, [request] if n_segments == 1 else [request[:cut], request[cut:]], seconds=0.3)
            name = f"nobody-{number}-{n_segments}"
            innocent = f"GET /v1/adapters/{name} HTTP/1.1\r\nHost: lorad.test\r\nConnection: close\r\n\r\n".encode()
            answer, _ = raw_http.exchange(address, [innocent], seconds=10)
            body = answer.partition(b"\r\n\r\n")[2]
            try:
                is_own = raw_http.statuses(answer) == [404] and name in json.loads(body)["error"]["message"]
            except (ValueError, KeyError):
                is_own = False
            n_wrong += not is_own
    return n_wrong

"""moto's S3 on loopback: `python -m servers.moto_program <address file> <bucket>`."""

import http.client
import sys
import threading
from pathlib import Path

from moto.server import ThreadedMotoServer

from servers.lifetime import announce, end_with_standard_input


def main() -> None:
    end_with_standard_input()
    address, bucket = sys.argv[1:]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    announce(Path(address), f"http://{host}:{port}")
    threading.Event().wait()


if __name__ == "__main__":
    main()

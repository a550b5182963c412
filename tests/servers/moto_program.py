"""moto's S3 on loopback: `python -m servers.moto_program <address file> <bucket>`."""

import http.client
import sys
import threading
from pathlib import Path
from typing import Any

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from servers.lifetime import announce, end_with_standard_input


def write_one_at_a_time() -> None:
    """Write objects one after the other.

    moto looks for the object of a conditional write, and stores the new one in a second step. Between the steps another thread could
    write it, and both writers would be told that they were the first. S3 tells one.
    """
    put_object, writing = S3Response.put_object, threading.Lock()

    def put_alone(self: S3Response) -> Any:
        with writing:
            return put_object(self)

    S3Response.put_object = put_alone  # type: ignore[method-assign]


def main() -> None:
    end_with_standard_input()
    address, bucket = sys.argv[1:]
    write_one_at_a_time()
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

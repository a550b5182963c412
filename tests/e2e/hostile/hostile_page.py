"""A web page of somebody else, on another port of this machine, that tries to command the servers of `eval-dagster ui`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAUSE = "mutation { setAutoMaterializePaused(paused: true) }"
EXPERIMENT = {"name": "planted"}
SCRIPT = """
const attempts = {
  get: () => fetch(target.dagster + '/graphql?query=' + encodeURIComponent(target.mutation), {mode: 'no-cors'}),
  image: () => new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = image.onerror = resolve;
    image.src = target.dagster + '/graphql?query=' + encodeURIComponent(target.mutation);
  }),
  simplePost: () => fetch(target.dagster + '/graphql?query=' + encodeURIComponent(target.mutation), {
    method: 'POST', mode: 'no-cors', headers: {'content-type': 'text/plain'}, body: '',
  }),
  post: () => fetch(target.dagster + '/graphql', {
    method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({query: target.mutation}),
  }),
  read: () => fetch(target.dagster + '/graphql', {
    method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({query: '{ version }'}),
  }).then(answer => answer.text()),
  experiment: () => fetch(target.mlflow + '/ajax-api/2.0/mlflow/experiments/create', {
    method: 'POST', mode: 'no-cors', headers: {'content-type': 'text/plain'}, body: JSON.stringify(target.experiment),
  }),
  experimentJson: () => fetch(target.mlflow + '/api/2.0/mlflow/experiments/create', {
    method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(target.experiment),
  }).then(answer => answer.text()),
  runs: () => fetch(target.mlflow + '/ajax-api/2.0/mlflow/experiments/search?max_results=5').then(answer => answer.text()),
  socket: () => new Promise((resolve, reject) => {
    const socket = new WebSocket(target.dagster.replace('http', 'ws') + '/graphql', 'graphql-ws');
    socket.onopen = () => resolve('open');
    socket.onerror = () => reject('refused');
  }),
  form: () => new Promise(resolve => {
    const frame = document.createElement('iframe');
    frame.name = 'answer';
    document.body.append(frame);
    const form = document.createElement('form');
    form.method = 'POST';
    form.target = 'answer';
    form.action = target.dagster + '/graphql?query=' + encodeURIComponent(target.mutation);
    document.body.append(form);
    form.submit();
    setTimeout(resolve, 1500);
  }),
};
async function attack() {
  const outcomes = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    try {
      const answer = await attempt();
      outcomes[name] = answer instanceof Response ? answer.type : String(answer);
    } catch (problem) {
      outcomes[name] = 'refused: ' + problem;
    }
  }
  return outcomes;
}
"""


@contextmanager
def hostile_page(dagster: str, mlflow: str) -> Iterator[int]:
    """Serve the page; gives its port."""
    target = json.dumps({"dagster": dagster, "mlflow": mlflow, "mutation": PAUSE, "experiment": EXPERIMENT})
    links = f'<a id="link" href="{dagster}/assets">assets</a> <iframe id="framed" src="{dagster}/assets"></iframe>'
    page = f"<!doctype html><title>hostile</title><body>{links}<script>const target = {target};{SCRIPT}</script></body>"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

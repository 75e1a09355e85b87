"""An OTLP collector for tests: takes metrics and traces by gRPC and by HTTP, and prints each
request as a line of JSON, decoded by the protocol's own message types.

    python otlp_receiver.py [--hang] [--grpc-port N]

    {"grpcPort": 1234, "httpPort": 1235}                                      first
    {"transport": "grpc", "signal": "metrics", "headers": {...}, "body": {...}}  then each request

With --hang it takes requests and never answers. It ends with its standard input.
"""

import argparse
import gzip
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as metrics,
    metrics_service_pb2_grpc as metrics_grpc,
)
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2 as traces,
    trace_service_pb2_grpc as traces_grpc,
)

HOST = "127.0.0.1"
TYPES = {
    "metrics": (metrics.ExportMetricsServiceRequest, metrics.ExportMetricsServiceResponse),
    "traces": (traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse),
}
OUTPUT = threading.Lock()


def write(value):
    with OUTPUT:
        print(json.dumps(value), flush=True)


def take(transport, signal, headers, request):
    write(
        {
            "transport": transport,
            "signal": signal,
            "headers": headers,
            "body": MessageToDict(request),
        }
    )


def answer_grpc(signal, is_hanging):
    def export(_self, request, context):
        headers = {key: value for key, value in context.invocation_metadata()}
        take("grpc", signal, headers, request)
        if is_hanging:
            threading.Event().wait()
        return TYPES[signal][1]()

    return export


def serve_grpc(is_hanging, wanted_port):
    server = grpc.server(ThreadPoolExecutor(8))
    for signal, base, register in (
        (
            "metrics",
            metrics_grpc.MetricsServiceServicer,
            metrics_grpc.add_MetricsServiceServicer_to_server,
        ),
        (
            "traces",
            traces_grpc.TraceServiceServicer,
            traces_grpc.add_TraceServiceServicer_to_server,
        ),
    ):
        servicer = type(f"Taker{signal}", (base,), {"Export": answer_grpc(signal, is_hanging)})
        register(servicer(), server)
    port = server.add_insecure_port(f"{HOST}:{wanted_port}")
    server.start()
    # Kept: a server that nobody refers to stops.
    return server, port


def handler_of(is_hanging):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.read_body()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            signal = {"/v1/metrics": "metrics", "/v1/traces": "traces"}.get(self.path)
            if signal is None:
                self.send_error(404)
                return
            request, response = TYPES[signal]
            headers = {key.lower(): value for key, value in self.headers.items()}
            take("http", signal, headers, request.FromString(body))
            if is_hanging:
                threading.Event().wait()
            text = response().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def read_body(self):
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_):
            pass

    return Handler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--grpc-port", type=int, default=0)
    options = parser.parse_args()
    server, grpc_port = serve_grpc(options.hang, options.grpc_port)
    http = ThreadingHTTPServer((HOST, 0), handler_of(options.hang))
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    write({"grpcPort": grpc_port, "httpPort": http.server_address[1]})
    sys.stdin.read()
    # Calls that hang would keep the interpreter alive.
    os._exit(0 if server else 1)


main()

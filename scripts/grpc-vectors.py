#!/usr/bin/env python3
"""Golden messages of the gRPC transport: what the ZMQ frames of the wire vectors are as protobuf.

Needs the reference package (lmcache 0.5.6), whose generated classes write every message:

    python scripts/grpc-vectors.py test/vectors/wire-0.5.6.json > test/vectors/grpc-0.5.6.json

`requests` and `responses` have the same operations and cases as those of the wire vectors; frames
that those only have a digest of are left out.
"""
import json
import sys
from importlib.metadata import version

from lmcache.v1.multiprocess.transport.grpc_impl.method_registry import get_method_codec_registry
from lmcache.v1.multiprocess.transport.zmq_impl.mq import msgspec_decode

BY_OPERATION = {
    codec.operation: codec for codec in get_method_codec_registry().by_full_name.values()
}


def bytes_of(frame):
    if isinstance(frame, str):
        return bytes.fromhex(frame)
    if "$runs" in frame:
        return b"".join(bytes.fromhex(hexed) * count for hexed, count in frame["$runs"])
    return None


def write(message):
    return message.SerializeToString(deterministic=True).hex()


def request_message(codec, frames):
    values = tuple(
        msgspec_decode(frame, kind)
        for frame, kind in zip(frames, codec.payload_types, strict=True)
    )
    return write(codec.request_encoder(values, {}))


def response_message(codec, frames):
    value = msgspec_decode(frames[0], codec.response_type) if frames else None
    return write(codec.response_encoder(value))


def convert(entries, to_message, header_count):
    messages = []
    for entry in entries:
        frames = [bytes_of(frame) for frame in entry["frames"][header_count:]]
        codec = BY_OPERATION.get(entry["op"])
        # The end of a stream is no message here.
        if codec is None or None in frames or entry["case"] == "end-of-stream":
            continue
        messages.append({
            "op": entry["op"], "case": entry["case"], "method": codec.full_name,
            "hex": to_message(codec, frames),
        })
    return messages


with open(sys.argv[1]) as file:
    wire = json.load(file)
json.dump({
    "peer": f"lmcache {version('lmcache')}",
    "methods": sorted(codec.full_name for codec in BY_OPERATION.values()),
    "requests": convert(wire["requests"], request_message, 2),
    "responses": convert(wire["responses"], response_message, 2),
}, sys.stdout, indent=1)

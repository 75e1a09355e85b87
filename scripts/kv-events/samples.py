"""samples.py FILE: writes test/vectors/kv-events-vllm.json, KV events and their bytes as vLLM's encoder writes them.

A sample has what kvd's bus says (model, world size, salt, chunk hashes, token ids) and the bytes of
the batch that says the same in vLLM's types. A block hash is SHA-256 over the chunk hash and the
text "<world size>/<length of the model name>/<model name><salt>".
"""

import hashlib
import json
import sys

import msgspec
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

TIME_MS = 1_700_000_000_125


def block_hash(scope, chunk_hash):
    model = scope["modelName"]
    text = f"{scope['worldSize']}/{len(model)}/{model}{scope['cacheSalt']}"
    return hashlib.sha256(chunk_hash + text.encode()).digest()


def chunk_hash(number, size=32):
    return bytes((number * 7 + i) % 256 for i in range(size))


def stored(scope, first, count, chunk_size, with_parent, token_ids, size=32):
    hashes = [chunk_hash(first + i, size) for i in range(count)]
    parent = chunk_hash(first - 1, size) if with_parent else None
    salt = scope["cacheSalt"]
    extra_keys = None
    if salt and not with_parent:
        extra_keys = [(salt,)] + [None] * (count - 1)
    event = BlockStored(
        block_hashes=[block_hash(scope, one) for one in hashes],
        parent_block_hash=block_hash(scope, parent) if with_parent else None,
        token_ids=token_ids,
        block_size=chunk_size,
        lora_id=None,
        medium="CPU",
        lora_name=None,
        extra_keys=extra_keys,
    )
    said = {
        "kind": "stored",
        **scope,
        "hashes": [one.hex() for one in hashes],
        "parentHash": parent.hex() if with_parent else None,
        "tokenIds": token_ids,
    }
    return said, event


def removed(scope, numbers, size=32):
    hashes = [chunk_hash(one, size) for one in numbers]
    event = BlockRemoved(
        block_hashes=[block_hash(scope, one) for one in hashes], medium="CPU"
    )
    return {"kind": "removed", **scope, "hashes": [one.hex() for one in hashes]}, event


def cleared():
    return {"kind": "cleared"}, AllBlocksCleared()


def scope_of(model="facebook/opt-125m", world_size=1, salt=""):
    return {"modelName": model, "worldSize": world_size, "cacheSalt": salt}


def samples():
    plain = scope_of()
    tenant = scope_of(model="modèle/ü", world_size=8, salt="tenant-a")
    long = scope_of(model="m" * 40)
    limits = [0, 127, 128, 255, 256, 65535, 65536, 4294967295]
    yield "one chunk at the start of a prompt", [stored(plain, 1, 1, 16, False, list(range(16)))]
    yield "chunks behind others", [stored(plain, 5, 3, 4, True, list(range(1000, 1012)))]
    yield "token ids of all widths", [stored(plain, 1, 1, 8, False, limits)]
    yield "chunks of 256 tokens", [stored(plain, 1, 2, 256, False, [i * 97 for i in range(512)])]
    yield "a tenant's first chunks", [stored(tenant, 1, 3, 2, False, [1, 2, 3, 4, 5, 6])]
    yield "a tenant's later chunks", [stored(tenant, 4, 2, 2, True, [7, 8, 9, 10])]
    yield "short hashes", [stored(plain, 1, 1, 2, False, [1, 2], size=8)]
    yield "one removal", [removed(plain, [3])]
    yield "many removals", [removed(tenant, list(range(20)))]
    yield "cleared", [cleared()]
    yield "events of all kinds in one batch", [
        stored(long, 1, 1, 2, False, [1, 2]),
        removed(long, [1]),
        cleared(),
        stored(long, 2, 1, 2, False, [3, 4]),
    ]
    yield "more than 15 events", [removed(plain, [i]) for i in range(17)]


def main():
    encoder = msgspec.msgpack.Encoder()
    out = []
    for title, pairs in samples():
        batch = KVEventBatch(ts=TIME_MS / 1000, events=[event for _, event in pairs])
        # What vLLM's publisher of rank 0 does before it encodes.
        batch.data_parallel_rank = 0
        events = [said for said, _ in pairs]
        out.append({"title": title, "events": events, "bytes": encoder.encode(batch).hex()})
    # vLLM logs to standard output.
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"timeMs": TIME_MS, "samples": out}, file, indent=1)
        file.write("\n")


main()

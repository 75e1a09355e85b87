"""What the gRPC client of lmcache 0.5.6 makes of single requests; prints one line of JSON.

    python grpc-requests.py URL MODEL

Started by scripts/test-generations.ts when chunks of MODEL have been stored: the event stream
replays them. Requests that the server refuses show how it says no.
"""
import json
import os
import sys

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
# What the library prints must not get between.
os.dup2(2, 1)

import grpc  # noqa: E402
from lmcache.utils import EngineType  # noqa: E402
from lmcache.v1.multiprocess.custom_types import RegisterEngineDrivenContextPayload  # noqa: E402
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402

URL, MODEL = sys.argv[1:3]
TIMEOUT_S = 30
INSTANCE = 2**62 + 5


def read_events(client):
    stream = client.subscribe_kv_events(INSTANCE, MODEL, 0, 3)
    batches, seqs = 0, []
    incarnations = set()
    for batch in stream:
        batches += 1
        incarnations.add(batch.incarnation)
        seqs += [event.seq for event in batch.events]
        if not batch.enabled or len(seqs) >= 4:
            break
    stored = {"batches": batches, "seqs": seqs, "incarnations": len(incarnations)}
    tokens = len(batch.events[0].token_ids) if batch.events else 0
    # Wakes a reader; a second one is not asked for any more.
    stream.close()
    return {**stored, "tokens": tokens, "closed": next(stream, "end") == "end"}


def refusal(future):
    try:
        return {"value": repr(future.result(timeout=TIMEOUT_S))}
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}


def context(block_size):
    return RegisterEngineDrivenContextPayload(
        instance_id=INSTANCE, model_name=MODEL, world_size=1, block_size=block_size, num_layers=1,
        hidden_dim_size=8, dtype_str="float16", use_mla=False,
    )


client = RequestClientFactory.create(URL)
print(json.dumps({
    "chunk_size": client.get_chunk_size().result(timeout=TIMEOUT_S),
    "noop": client.noop().result(timeout=TIMEOUT_S),
    "unregistered": [client.ping(INSTANCE).result(timeout=TIMEOUT_S) for _ in range(2)],
    "experimental": client.get_experimental().result(timeout=TIMEOUT_S),
    "events": read_events(client),
    "bad_registration": refusal(
        client.register_kv_cache(INSTANCE, [], MODEL, 0, EngineType.VLLM, {}, [])
    ),
    "bad_context": refusal(client.register_kv_cache_engine_driven_context(context(0))),
    "unknown_query": refusal(client.query_prefetch_status("nobody's")),
    "handshake": refusal(client.cb_protocol_handshake(1)),
    "rope": refusal(client.cb_register_rope(INSTANCE, [], 8, True, [], [], [], "")),
}), file=ANSWERS)
client.close()

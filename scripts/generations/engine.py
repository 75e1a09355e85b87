"""One serving engine of some client release, driven by lines on standard input.

Started by scripts/test-generations.ts under the Python of that release, with the folder of the
conformance drivers as its argument: their `harness` has the real client classes behind one face for
all releases. A line is a JSON object with the key `do`; the answer is one JSON line.

  open      name, model, format, mode        registers a KV cache of zeros
  store     name, seed, chunks               fills the cache from the seed, stores the prompt of it
  load      name, seed, chunks               looks the prompt up, retrieves what was hit
  close     name
  release                                    the lmcache release

The same seed and format give the same prompt and the same bytes in every process, so `digest`
(SHA-256 of the engine's blocks) can be compared between `store` and `load` of any two engines.
"""
import hashlib
import json
import os
import sys

# What a client library prints must not get between the answers.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
DRIVERS, URL = sys.argv[1:3]
sys.path.insert(0, DRIVERS)

import harness as H  # noqa: E402

ENGINES: dict[str, H.Engine] = {}
BLOCK_COUNT = 64


def digest(kv, block_ids):
    return hashlib.sha256(b"".join(kv.blocks(block_ids))).hexdigest()


def block_ids_of(engine, chunk_count):
    # Block 0 is the null block of real engines.
    return list(range(1, 1 + chunk_count * engine.bpc))


def open_engine(request):
    name = request["name"]
    ENGINES[name] = H.Engine(
        URL, request["model"], fmt=request["format"], mode=request["mode"], nb=BLOCK_COUNT,
        heartbeat=2.0,
    )
    return {"chunk": ENGINES[name].chunk}


def store(request):
    engine = ENGINES[request["name"]]
    chunk_count = request["chunks"]
    kv = engine.kvs[0].fill(request["seed"])
    block_ids = block_ids_of(engine, chunk_count)
    prompt = H.tokens(chunk_count * engine.chunk, request["seed"])
    ok = engine.store(prompt, block_ids)
    return {"ok": all(ok), "digest": digest(kv, block_ids)}


def load(request):
    engine = ENGINES[request["name"]]
    prompt = H.tokens(request["chunks"] * engine.chunk, request["seed"])
    kv = engine.kvs[0].zero()
    request_id, hit_tokens = engine.lookup(prompt)
    block_ids = block_ids_of(engine, hit_tokens // engine.chunk)
    ok = engine.retrieve(prompt, block_ids, 0, hit_tokens, request_id) if hit_tokens else [True]
    engine.end(request_id)
    return {"hit": hit_tokens // engine.chunk, "ok": all(ok), "digest": digest(kv, block_ids)}


def close(request):
    ENGINES.pop(request["name"]).close()
    return {}


COMMANDS = {
    "open": open_engine,
    "store": store,
    "load": load,
    "close": close,
    "release": lambda _: {"release": H.L.VERSION},
}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = COMMANDS[request["do"]](request)
    except Exception as error:  # noqa: BLE001
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=ANSWERS)
H.leave(0)

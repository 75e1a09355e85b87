"""Moves every instrument that the real client can move: the traffic of prom_0.5.0_traffic.prom.

usage: traffic.py DRIVERS_FOLDER URL

Lookups, stores and retrieves of two tenants, a lookup that nobody fetches, an unknown model, a
cleared L1 that is filled again from L2, a retrieve of what is not there, block reports, and an L1
that is full of chunks that are in use.
"""
import os
import sys
import time

sys.path.insert(0, sys.argv[1])
import lmc_compat as L  # noqa: E402
from harness import Engine, leave, tokens  # noqa: E402

URL = sys.argv[2]
MODEL = "org/demo-7b"
CHUNKS = 4
L1_CHUNKS = 256


def read_all(engine, prompt, salt, rid, hit):
    blocks = list(range(64, 64 + hit // 16))
    engine.retrieve(prompt, blocks, 0, hit, rid, salt)


def main():
    client = L.Client(URL)
    engine = Engine(URL, MODEL)
    prompts = {salt: tokens(CHUNKS * engine.chunk) for salt in ("", "tenant-a")}
    for salt, prompt in prompts.items():
        engine.store_n(prompt, CHUNKS, salt=salt)
        rid, hit = engine.lookup(prompt, salt, want=len(prompt))
        read_all(engine, prompt, salt, rid, hit)
        engine.end(rid)
    # Found, and given back without being read.
    rid, hit = engine.lookup(prompts[""])
    engine.free(prompts[""], 0, hit, rid)
    engine.end(rid)
    # Nobody fetches the result.
    engine.sched.maybe_submit_lookup_request("abandoned", tokens(64), cache_salt="")
    engine.sched.end_session("abandoned")
    # A model that nobody serves.
    stranger = Engine(URL, "nope/none", register=False)
    rid, _ = stranger.lookup(tokens(64))
    stranger.end(rid)
    # L2 keeps what L1 loses.
    time.sleep(2.0)
    client.call("clear", *L.CLEAR_ALL)
    for salt, prompt in prompts.items():
        rid, hit = engine.lookup(prompt, salt, want=len(prompt))
        read_all(engine, prompt, salt, rid, hit)
        engine.end(rid)
    # What was never stored; 0.5.0 gets no answer, because it would take one for a success.
    absent = tokens(2 * engine.chunk)
    try:
        engine.workers[0].submit_retrieve_request(
            "absent", engine._op(absent, [1, 2], 0, len(absent)), L.make_event(engine.workers[0])
        )
    except Exception as error:  # noqa: BLE001 - whatever the client says, the server has counted
        print("retrieve of absent chunks:", error)
    time.sleep(0.5)
    reports(client)
    fill(engine)
    time.sleep(2.5)
    leave(0)


def reports(client):
    record = L.BlockAllocationRecord
    block = list(range(100, 116))
    calls = [
        [record(req_id="r1", new_block_ids=[1], new_token_ids=block)],
        [record(req_id="r2", new_block_ids=[1], new_token_ids=block)],
    ]
    for records in calls:
        client.call("report_block_allocation", os.getpid(), MODEL, records)
    for rid in ("r1", "r2"):
        client.call("end_session", rid)
    # Used again twice: the second use and the end of its life are what the histograms are of.
    for rid in ("r3", "r4"):
        again = [record(req_id=rid, new_block_ids=[1], new_token_ids=block)]
        client.call("report_block_allocation", os.getpid(), MODEL, again)
        client.call("end_session", rid)
    other = [record(req_id="r5", new_block_ids=[1], new_token_ids=list(range(300, 316)))]
    client.call("report_block_allocation", os.getpid(), MODEL, other)


def fill(engine):
    """Holds as much as L1 has room for, then stores more; lets go, and stores again."""
    held = []
    for _ in range(L1_CHUNKS // 100 + 1):
        prompt = tokens(100 * engine.chunk)
        engine.store(prompt, list(range(100)), 0, len(prompt))
        rid, hit = engine.lookup(prompt)
        held.append((prompt, rid, hit))
    more = tokens(100 * engine.chunk)
    engine.store(more, list(range(100)), 0, len(more))
    for prompt, rid, hit in held:
        if hit:
            engine.free(prompt, 0, hit, rid)
        engine.end(rid)
    # In steps that cross the watermark before L1 is full.
    for _ in range(12):
        prompt = tokens(20 * engine.chunk)
        engine.store(prompt, list(range(20)), 0, len(prompt))


main()

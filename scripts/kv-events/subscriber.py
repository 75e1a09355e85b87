"""subscriber.py ENDPOINT REPLAY_ENDPOINT: a router that reads kvd's KV events with vLLM's own types.

It loses every third batch on purpose, sees the gap in the numbers, and asks for what is missing as
vLLM's example subscriber does. A line "finish N" on standard input says that N batches exist. Then
it prints one line "state: {...}" with what it believes, and the same from a replay of everything.
"""

import json
import sys
import threading

import msgspec
import zmq
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

DECODER = msgspec.msgpack.Decoder(type=KVEventBatch)
TIMEOUT_MS = 10_000


class Believer:
    """Blocks by hash: parent and tokens."""

    def __init__(self):
        self.blocks = {}
        self.problems = []
        self.counts = {}

    def apply(self, payload):
        batch = DECODER.decode(payload)
        if batch.data_parallel_rank != 0 or not batch.ts > 1e9:
            self.problems.append(f"rank {batch.data_parallel_rank}, time {batch.ts}")
        for event in batch.events:
            name = type(event).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            if isinstance(event, BlockStored):
                self.store(event)
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    if self.blocks.pop(one, None) is None:
                        self.problems.append("a block was removed that was not stored")
            elif isinstance(event, AllBlocksCleared):
                self.blocks.clear()

    def store(self, event):
        parent = event.parent_block_hash
        size = event.block_size
        if event.medium != "CPU" or len(event.token_ids) != size * len(event.block_hashes):
            self.problems.append(f"not as vLLM has it: {event}")
        for i, one in enumerate(event.block_hashes):
            if one in self.blocks:
                self.problems.append("a block was stored twice")
            extra = event.extra_keys[i] if event.extra_keys else None
            self.blocks[one] = (parent, event.token_ids[i * size : (i + 1) * size], extra)
            parent = one

    def prompts(self):
        """[salt, tokens] of every chain of blocks that nobody goes on with."""
        parents = {parent for parent, _, _ in self.blocks.values()}
        found = []
        for one in self.blocks:
            if one in parents:
                continue
            tokens, salt = [], ""
            while one is not None:
                if one not in self.blocks:
                    tokens = ["?"] + tokens
                    break
                parent, part, extra = self.blocks[one]
                tokens = part + tokens
                salt = extra[0] if extra else salt
                one = parent
            found.append([salt, tokens])
        return sorted(found, key=json.dumps)

    def state(self):
        return {
            "blockCount": len(self.blocks),
            "prompts": self.prompts(),
            "problems": self.problems[:5],
            "counts": self.counts,
        }


def replay(context, endpoint, start):
    """Every (number, payload) from `start` on, by a REQ-like client."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    socket.connect(endpoint)
    socket.send_multipart((b"", start.to_bytes(8, "big")))
    try:
        while True:
            _, number, payload = socket.recv_multipart()
            if number == ZmqEventPublisher.END_SEQ:
                return
            yield int.from_bytes(number, "big"), payload
    finally:
        socket.close(linger=0)


def main():
    endpoint, replay_endpoint = sys.argv[1:3]
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 100)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
    socket.connect(endpoint)
    end = None

    def wait_for_end():
        nonlocal end
        for line in sys.stdin:
            if line.startswith("finish "):
                end = int(line.split()[1])

    threading.Thread(target=wait_for_end, daemon=True).start()
    live = Believer()
    next_seq = received = dropped = filled = 0
    is_ready = False
    while end is None or next_seq < end:
        try:
            _, number, payload = socket.recv_multipart()
        except zmq.Again:
            if end is None:
                continue
            number = payload = None
        if not is_ready:
            is_ready = True
            print("ready", flush=True)
        received += 1
        # The first one is kept: it says where the stream begins for the late comer.
        if payload is not None and received % 3 == 0:
            dropped += 1
            continue
        seq = end if number is None else int.from_bytes(number, "big")
        if seq > next_seq:
            for missing, batch in replay(context, replay_endpoint, next_seq):
                if missing >= seq:
                    break
                assert missing == next_seq, (missing, next_seq)
                live.apply(batch)
                next_seq += 1
                filled += 1
        if payload is not None and seq == next_seq:
            live.apply(payload)
            next_seq += 1
    late = Believer()
    for _, batch in replay(context, replay_endpoint, 0):
        late.apply(batch)
    state = {"live": live.state(), "late": late.state(), "dropped": dropped, "filled": filled}
    print("state: " + json.dumps(state), flush=True)


main()

#!/usr/bin/env python3
"""Golden vectors of KV layouts of newer generations: which format a registration has, and the
bytes of its objects.

Needs the reference package (lmcache 0.5.3 or newer). Run once per generation:

    python scripts/layout-vectors.py > test/vectors/layouts-<version>.json
"""
import contextlib
import importlib
import json
import logging
import os
import sys
from importlib.metadata import version

os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.disable(logging.CRITICAL)
import torch  # noqa: E402
from lmcache.utils import EngineType  # noqa: E402
from lmcache.v1.gpu_connector.kv_format.detectors import vllm as vllm_rules  # noqa: E402
from lmcache.v1.gpu_connector.utils import (  # noqa: E402
    make_page_buffer_shape_desc,
    normalize_and_discover_per_layer_formats,
    resolve_block_stride_and_log_layout,
)

NB, BS, NH, HS, C = 5, 2, 3, 2, 4


def first_module(*names):
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ImportError(names)


F = first_module("lmcache.lmcache_native", "lmcache.v1.platform.torch_ops").EngineKVFormat
OPS = first_module("lmcache.v1.platform.torch_ops.mp_mem_kernels", "lmcache.v1.platform.torch_ops")
D = OPS.TransferDirection


def strided(tensor):
    """A tensor by shape, dtype and stride, without memory for what the strides skip."""
    dtype = getattr(torch, tensor.get("dtype", "int16"))
    shape, stride = tensor["shape"], tensor.get("stride")
    if stride is None:
        return torch.empty(shape, dtype=dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    return torch.empty(size, dtype=dtype).as_strided(shape, stride)


def case(engine, tensors, hints=None, groups=()):
    return {"engine": engine, "tensors": tensors, "hints": hints or {}, "groups": list(groups)}


def t(*shape, dtype="int16", stride=None):
    tensor = {"shape": list(shape)}
    if dtype != "int16":
        tensor["dtype"] = dtype
    if stride is not None:
        tensor["stride"] = stride
    return tensor


def vllm_cases():
    shapes = {
        "two first": [t(2, NB, 3, 4, 8)],
        "blocks first": [t(NB, 2, 3, 4, 8)],
        "two blocks": [t(2, 2, 3, 4, 8)],
        "no two": [t(3, NB, 3, 4, 8)],
        "latent": [t(NB, 4, 8)],
        "latent with gaps": [t(NB, 4, 8, stride=[40, 8, 1])],
        "fused": [t(NB, 3, 4, 8)],
        "fused with gaps": [t(NB, 3, 4, 8, stride=[960, 32, 8, 1])],
        "fused of odd content": [t(NB, 3, 4, 7)],
        "one head before slots, with gaps": [t(NB, 1, 4, 8, stride=[960, 8, 8, 1])],
        "two first with gaps": [t(2, NB, 3, 4, 8, stride=[960, 96, 32, 8, 1])],
        "indexer": [t(NB, 4, 132, dtype="uint8")],
        "indexer with gaps": [t(NB, 4, 132, dtype="uint8", stride=[1000, 132, 1])],
        "indexer of another dtype": [t(NB, 4, 132, dtype="int8")],
        "indexer with a head behind slots": [t(NB, 4, 1, 132, dtype="uint8")],
        "indexer with a head before slots": [t(NB, 1, 4, 132, dtype="uint8")],
        "six dimensions": [t(2, NB, 3, 1, 4, 8)],
        "six dimensions without a single one": [t(2, NB, 3, 2, 4, 8)],
        "seven dimensions": [t(2, NB, 3, 1, 1, 4, 8)],
        "keys and values beside an indexer": [t(2, NB, 3, 4, 8), t(NB, 4, 132, dtype="uint8")],
        "an indexer beside keys and values": [t(NB, 4, 132, dtype="uint8"), t(2, NB, 3, 4, 8)],
        "fused beside latent": [t(NB, 3, 4, 8), t(NB, 4, 8)],
    }
    for hint in (None, "NHD", "HND", "BLHNC", "BLNHC", "LHBNC"):
        for name, tensors in shapes.items():
            hints = {"kv_layout": hint} if hint else {}
            yield {"case": f"vllm, {name}, {hint}", **case("VLLM", tensors, hints)}
    yield {
        "case": "vllm, a strange layer in no group",
        **case("VLLM", [t(2, NB, 3, 4, 8), t(3)], {"kv_layout": "NHD"}, [[0]]),
    }
    yield {
        "case": "vllm, a strange layer in a group",
        **case("VLLM", [t(2, NB, 3, 4, 8), t(3)], {"kv_layout": "NHD"}, [[0], [1]]),
    }


def other_cases():
    slots = {"tokens_per_block": 2}
    for name, tensors, hints in [
        ("k_v", [t(8, 3, 8)] * 4, {**slots, "kv_list_layout": "k_v"}),
        ("k_v of one head", [t(8, 1, 8)] * 4, {**slots, "kv_list_layout": "k_v"}),
        ("k_v of slots that are no blocks", [t(9, 3, 8)] * 4, {**slots, "kv_list_layout": "k_v"}),
        ("unified latent", [t(NB, 2, 8)] * 2, {"kv_list_layout": "unified"}),
        ("unified heads", [t(NB, 2, 3, 8)] * 2, {"kv_list_layout": "unified"}),
        ("unified, both", [t(NB, 2, 3, 8), t(NB, 2, 8)], {"kv_list_layout": "unified"}),
        ("unified, one dimension more", [t(2, NB, 2, 3, 8)], {"kv_list_layout": "unified"}),
        ("latent slots", [t(8, 1, 8)] * 3, slots),
    ]:
        yield {"case": f"sglang, {name}", **case("SGLANG", tensors, hints)}
    heads = {"num_kv_heads": 3, "tokens_per_block": 2, "head_dim": 8}
    yield {"case": "trtllm", **case("TRTLLM", [t(NB, 2, 2, 48)], {**heads, "kv_layout": "HND"})}
    yield {"case": "trtllm, misfit", **case("TRTLLM", [t(NB, 2, 2, 40)], heads)}
    if hasattr(EngineType, "ATOM"):
        yield {"case": "atom", **case("ATOM", [t(NB, 2, 8), t(NB, 2, 4)])}
        yield {"case": "atom, fused", **case("ATOM", [t(NB, 2, 3, 8)])}


def discover(one, device):
    vllm_rules.torch_device_type = device
    try:
        tensors = [strided(tensor) for tensor in one["tensors"]]
        engine = EngineType[one["engine"]]
        found, formats = normalize_and_discover_per_layer_formats(
            tensors, one["groups"], engine, one["hints"]
        )
        served = {i for group in one["groups"] for i in group} or range(len(formats))
        for layer in served:
            resolve_block_stride_and_log_layout(found, formats[layer], layer, 0)
        return [fmt.name if i in served else None for i, fmt in enumerate(formats)]
    except Exception as error:
        return {"error": type(error).__name__}


def discovery():
    for one in [*vllm_cases(), *other_cases()]:
        yield {**one, "formats": {device: discover(one, device) for device in ("cpu", "cuda")}}


def arange(shape, base, dtype):
    size = 1
    for n in shape:
        size *= n
    values = torch.arange(base, base + size)
    return (values % 251 if dtype == torch.uint8 else values).to(dtype).reshape(shape)


def layouts():
    two = 2
    plans = {
        "NL_X_NB_NH_BS_CS": ((NB, NH, BS, 2 * HS), 1, (NH, 2 * HS), torch.int16, two),
        "NL_X_NB_BS_NH_CS": ((NB, BS, NH, 2 * HS), 1, (NH, 2 * HS), torch.int16, two),
        "NL_X_NB_BSV_BSS": ((NB, BS, 132), 1, (1, 132), torch.uint8, 1),
        "NL_X_TWO_NB_NH_ONE_BS_HS": ((2, NB, NH, 1, BS, HS), 2, (NH, HS), torch.int16, two),
        "NL_X_NB_BS_NH_HS": ((NB, BS, NH, HS), 1, (NH, HS), torch.int16, two),
    }
    blocks = [3, 1, 4, 0]
    for name, (shape, kv_size, (heads, head), dtype, layers) in plans.items():
        fmt = getattr(F, name, None)
        if fmt is None:
            continue
        size = arange(shape, 0, torch.int32).numel()
        tensors = [arange(shape, i * size, dtype) for i in range(layers)]
        desc = make_page_buffer_shape_desc(tensors, fmt, 0, layers, NB, BS)
        assert (desc.kv_size, desc.nh, desc.hs) == (kv_size, heads, head), name
        object_shape = (layers, C, heads * head)
        if kv_size == 2:
            object_shape = (2, *object_shape)
        objects = [torch.zeros(object_shape, dtype=dtype) for _ in range(2)]
        move = OPS.multi_layer_block_kv_transfer
        # RBLN sees its six dimensions as five; the bytes are the same.
        flat = lambda ts: [x.squeeze(3) if x.dim() == 6 else x for x in ts]  # noqa: E731
        move(flat(tensors), objects, blocks, "cpu", D.D2H, desc, C, fmt, 0)
        target = [torch.full_like(x, 255 if dtype == torch.uint8 else -1) for x in tensors]
        move(flat(target), objects, blocks, "cpu", D.H2D, desc, C, fmt, 1)
        yield {
            "format": name,
            "value": int(fmt),
            "dtype": str(dtype).removeprefix("torch."),
            "tensor_count": layers,
            "tensor_shape": list(shape),
            "object_shape": [kv_size, *object_shape[-3:]],
            "objects": [o.flatten().tolist() for o in objects],
            "scatter_skip_1_block_into_filled": [x.flatten().tolist() for x in target],
        }


def main():
    json.dump(
        {
            "format": 1,
            "reference": f"lmcache {version('lmcache')}",
            "comment": "discovery: formats per layer without (cpu) and with (cuda) an accelerator, "
            "null for a layer in no group. layouts: paged tensors hold 0,1,2,... (uint8: modulo "
            "251) in C order across the list; block_ids select two blocks per object; the scatter "
            "writes both objects, without the first block, over tensors of all bits set",
            "chunk_tokens": C,
            "block_ids": [3, 1, 4, 0],
            "discovery": list(discovery()),
            "layouts": list(layouts()),
        },
        sys.stdout,
        separators=(",", ":"),
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

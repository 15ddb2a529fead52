#!/usr/bin/env python3
"""Checkpoints of `weft train` beside Python's safetensors package.

    trainer/tests/test_safetensors_peer.py STEP_FOLDER [OUT]

Reads every part with safetensors.numpy and, if there is a PyTorch, with
safetensors.torch, and compares names, shapes and bits with the manifest and with the
bytes of the files. With OUT, writes the same checkpoint there with that package, in its
own order, for Weft to read. Exit status 69: there is no safetensors (or no numpy) here.
"""

import json
import pathlib
import struct
import sys

try:
    import numpy
    from safetensors import safe_open
    import safetensors.numpy
except ImportError as missing:
    print(f"left out: {missing}")
    sys.exit(69)
try:
    import torch
    import safetensors.torch
except ImportError:
    torch = None


def crc64(data):
    """CRC-64/XZ."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0xC96C5795D7870F42 if byte & 1 else 0)
        table.append(byte)
    state = 2**64 - 1
    for byte in data:
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return f"{state ^ (2**64 - 1):016x}"


def read_manifest(folder):
    text = (folder / "manifest.json").read_bytes()
    manifest = json.loads(text)
    assert manifest["schema"] == "weft-checkpoint/1", manifest["schema"]
    assert crc64(text[: text.rindex(b'  "checksum"')]) == manifest["checksum"]
    return manifest


def write_manifest(folder, manifest):
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(body, indent=2)[:-2].encode() + b",\n"
    line = f'  "checksum": "{crc64(text)}"\n}}\n'
    (folder / "manifest.json").write_bytes(text + line.encode())


def expected_shapes(model, part):
    """What model.h says of a part, with AdamW's moments."""
    dim = model["dim"]
    if part == 0:
        shapes = {"wte.weight": (256, dim), "wpe.weight": (model["context"], dim)}
    elif part == model["layers"] + 1:
        shapes = {"lnf.weight": (dim,), "lnf.bias": (dim,), "lm_head.weight": (256, dim)}
    else:
        block = {
            "ln1.weight": (dim,), "ln1.bias": (dim,),
            "attn.qkv.weight": (3 * dim, dim), "attn.qkv.bias": (3 * dim,),
            "attn.proj.weight": (dim, dim), "attn.proj.bias": (dim,),
            "ln2.weight": (dim,), "ln2.bias": (dim,),
            "mlp.fc.weight": (4 * dim, dim), "mlp.fc.bias": (4 * dim,),
            "mlp.proj.weight": (dim, 4 * dim), "mlp.proj.bias": (dim,),
        }
        shapes = {f"block.{part - 1}.{name}": shape for name, shape in block.items()}
    return {
        name + suffix: shape
        for name, shape in shapes.items()
        for suffix in ("", ".exp_avg", ".exp_avg_sq")
    }


def raw_tensors(path):
    """The bytes of each tensor, by the format's own description."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0, length
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


def check_part(folder, manifest, part):
    entry = manifest["parts"][part]
    path = folder / entry["file"]
    assert path.stat().st_size == entry["size"], path
    assert crc64(path.read_bytes()) == entry["checksum"], path
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["part"] == str(part) and metadata["step"] == str(manifest["step"]), metadata
    raw = raw_tensors(path)
    arrays = safetensors.numpy.load_file(path)
    shapes = expected_shapes(manifest["model"], part)
    assert {name: array.shape for name, array in arrays.items()} == shapes, path
    for name, array in arrays.items():
        assert array.dtype == numpy.float32 and array.tobytes() == raw[name], name
    if torch is not None:
        for name, tensor in safetensors.torch.load_file(path).items():
            assert tensor.dtype == torch.float32 and tuple(tensor.shape) == shapes[name], name
            assert tensor.numpy().tobytes() == raw[name], name
    return arrays


def write_part(out, entry, arrays):
    path = out / entry["file"]
    if torch is not None:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        safetensors.torch.save_file(tensors, path)
    else:
        safetensors.numpy.save_file(arrays, path)
    data = path.read_bytes()
    return {"file": entry["file"], "size": len(data), "checksum": crc64(data)}


def main(folder, out=None):
    folder = pathlib.Path(folder)
    manifest = read_manifest(folder)
    count = 0
    for part, entry in enumerate(manifest["parts"]):
        arrays = check_part(folder, manifest, part)
        count += len(arrays)
        if out is not None:
            pathlib.Path(out).mkdir(parents=True, exist_ok=True)
            manifest["parts"][part] = write_part(pathlib.Path(out), entry, arrays)
    if out is not None:
        write_manifest(pathlib.Path(out), manifest)
    print(f"{count} tensors agree; PyTorch {torch.__version__ if torch else 'left out'}")


if __name__ == "__main__":
    main(*sys.argv[1:])

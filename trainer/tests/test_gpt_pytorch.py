#!/usr/bin/env python3
"""The reference model beside the same GPT in PyTorch: logits, loss, every gradient, and
all parameters after ten steps of AdamW with clipping.

    trainer/tests/test_gpt_pytorch.py PROGRAM [--verbose]

PROGRAM is the test program test_gpt_model_gradients, which computes ours in float32, from files.
PyTorch computes the same in double. The error of a tensor is the largest absolute
difference over the largest absolute value in it; it must be at most 1e-5, for every
tensor, with an epsilon of 1e-4 in AdamW.

With the usual 1e-8 no float32 can do that: AdamW divides a gradient by its own size, so
one that is 0 but for rounding becomes a step like any other. (Biases of keys are such:
softmax does not see them.) There, PyTorch in float32 has an error too, and ours must be
at most 1e-5 or ten times as large.

Prints a line for each run, "NAME: N tensors agree", and the worst errors beside those
of PyTorch in float32. Exits 0 when all agree, 1 when one does not, 69 when torch is not
there.
"""

import argparse
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as error:
    print(f"no PyTorch: {error}", file=sys.stderr)
    sys.exit(69)

from torch.nn import functional

LIMIT = 1e-5
SLACK = 10  # times PyTorch's own error in float32, with the usual epsilon
EPSILON = 1e-4
USUAL_EPSILON = 1e-8
VOCABULARY = 256
STEPS = 10
ADAMW = {"rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "decay": 0.1}

# The context is longer than the sequences in some; 65 tokens are more than a tile of
# our attention, 1 is the least.
CONFIGS = {
    "small": dict(layers=2, dim=32, heads=4, context=16, tied=0, sequences=4, tokens=16, clip=1.0),
    "tied": dict(layers=2, dim=32, heads=4, context=16, tied=1, sequences=4, tokens=16, clip=1.0),
    "odd": dict(layers=3, dim=33, heads=3, context=70, tied=0, sequences=3, tokens=65, clip=0.5),
    "long": dict(layers=1, dim=48, heads=2, context=200, tied=1, sequences=2, tokens=200, clip=1.0),
    "one": dict(layers=1, dim=16, heads=1, context=4, tied=0, sequences=5, tokens=1, clip=1e9),
    "graph": dict(layers=5, dim=32, heads=4, context=16, tied=0, sequences=4, tokens=16, clip=1.0,
                  skips=1, predict=2),
}
SECOND_WEIGHT = 0.3  # of the second head's loss


def shapes(config):
    """Names and shapes of all tensors, as trainer/model/model.h has them."""
    c = config["dim"]
    found = {"wte.weight": (VOCABULARY, c), "wpe.weight": (config["context"], c)}
    for layer in range(config["layers"]):
        for name, shape in {
            "ln1.weight": (c,),
            "ln1.bias": (c,),
            "attn.qkv.weight": (3 * c, c),
            "attn.qkv.bias": (3 * c,),
            "attn.proj.weight": (c, c),
            "attn.proj.bias": (c,),
            "ln2.weight": (c,),
            "ln2.bias": (c,),
            "mlp.fc.weight": (4 * c, c),
            "mlp.fc.bias": (4 * c,),
            "mlp.proj.weight": (c, 4 * c),
            "mlp.proj.bias": (c,),
        }.items():
            found[f"block.{layer}.{name}"] = shape
    for head in ["", "mtp."][: config.get("predict", 1)]:
        found[head + "lnf.weight"] = found[head + "lnf.bias"] = (c,)
        found[head + "lm_head.weight"] = (VOCABULARY, c)
    return found


def initial_tensors(config, generator):
    """At random, biases and norms too, and large enough for everything to matter."""
    tensors = {}
    for name, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        norm = len(shape) == 1 and name.endswith("weight")
        tensors[name] = 1 + 0.1 * noise if norm else (0.2 if len(shape) == 2 else 0.1) * noise
    if config["tied"]:
        tensors["lm_head.weight"] = tensors["wte.weight"]
    return tensors


# ---- Theirs ----


def attention(config, w, prefix, x):
    batch, tokens, c = x.shape
    qkv = functional.linear(x, w[prefix + "qkv.weight"], w[prefix + "qkv.bias"])
    heads = [
        part.view(batch, tokens, config["heads"], c // config["heads"]).transpose(1, 2)
        for part in qkv.split(c, dim=2)
    ]
    y = functional.scaled_dot_product_attention(*heads, is_causal=True)
    y = y.transpose(1, 2).reshape(batch, tokens, c)
    return functional.linear(y, w[prefix + "proj.weight"], w[prefix + "proj.bias"])


def norm(w, prefix, x):
    return functional.layer_norm(x, x.shape[-1:], w[prefix + "weight"], w[prefix + "bias"], 1e-5)


def logits_of(config, w, inputs):
    """Of each head."""
    outputs = []
    x = w["wte.weight"][inputs] + w["wpe.weight"][: inputs.shape[1]]
    for layer in range(config["layers"]):
        block = f"block.{layer}."
        mirrored = config["layers"] - 1 - layer
        if config.get("skips") and mirrored + 1 < layer:
            x = x + outputs[mirrored]
        x = x + attention(config, w, block + "attn.", norm(w, block + "ln1.", x))
        hidden = norm(w, block + "ln2.", x)
        hidden = functional.linear(hidden, w[block + "mlp.fc.weight"], w[block + "mlp.fc.bias"])
        hidden = functional.gelu(hidden, approximate="tanh")
        x = x + functional.linear(hidden, w[block + "mlp.proj.weight"], w[block + "mlp.proj.bias"])
        outputs.append(x)
    return [
        functional.linear(norm(w, head + "lnf.", x), w[head + "lm_head.weight"])
        for head in ["", "mtp."][: config.get("predict", 1)]
    ]


def train(config, epsilon, tensors, inputs, targets, dtype):
    """Ten steps; everything that our program writes, by the same names."""
    w = {name: tensor.to(dtype).clone().requires_grad_() for name, tensor in tensors.items()}
    if config["tied"]:
        w["lm_head.weight"] = w["wte.weight"]
    own = list({id(tensor): tensor for tensor in w.values()}.values())
    optimizer = torch.optim.AdamW(
        [
            {"params": [t for t in own if t.dim() == 2], "weight_decay": ADAMW["decay"]},
            {"params": [t for t in own if t.dim() == 1], "weight_decay": 0.0},
        ],
        lr=ADAMW["rate"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=epsilon,
    )
    results = {"losses": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = logits_of(config, w, inputs[step])
        loss = sum(
            weight * functional.cross_entropy(of_head.reshape(-1, VOCABULARY), target.reshape(-1))
            for weight, of_head, target in zip([1, SECOND_WEIGHT], logits, targets[:, step])
        )
        loss.backward()
        if step == 0:
            results["logits"] = logits[0].detach()
            results.update({f"gradient.{name}": t.grad.clone() for name, t in w.items()})
        results["losses"].append(loss.item())
        results["norms"].append(torch.nn.utils.clip_grad_norm_(own, config["clip"]).item())
        optimizer.step()
    results.update({f"final.{name}": t.detach() for name, t in w.items()})
    return {
        name: torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        for name, value in results.items()
    }


# ---- Ours ----


def write_inputs(folder, config, epsilon, tensors, inputs, targets):
    def write(name, data):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)

    numbers = [config[k] for k in "layers dim heads context tied".split()]
    numbers += [config.get("skips", 0), config.get("predict", 1)]
    numbers += [config["sequences"], config["tokens"]]
    numbers += [STEPS] + [ADAMW[k] for k in "rate beta1 beta2".split()]
    numbers += [epsilon, ADAMW["decay"], config["clip"]]
    write("settings", " ".join(map(str, numbers)).encode())
    write("inputs", bytes(inputs.reshape(-1).tolist()))
    write("targets", bytes(targets[0].reshape(-1).tolist()))
    write("second_targets", bytes(targets[1].reshape(-1).tolist()))
    for name, tensor in tensors.items():
        write(f"initial.{name}", tensor.contiguous().numpy().tobytes())


def read_results(folder, names):
    results = {}
    for name in names:
        dtype = torch.float64 if name in ("losses", "norms") else torch.float32
        with open(os.path.join(folder, name), "rb") as file:
            data = bytearray(file.read())
        results[name] = torch.frombuffer(data, dtype=dtype).double()
    return results


# ---- Side by side ----


def error_of(found, expected):
    """The largest absolute difference over the largest absolute value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def run(program, config, epsilon):
    """What double, PyTorch's float32 and our program make of one configuration."""
    generator = torch.Generator().manual_seed(1)
    tensors = initial_tensors(config, generator)
    size = (STEPS, config["sequences"], config["tokens"])
    inputs = torch.randint(VOCABULARY, size, generator=generator)
    targets = torch.randint(VOCABULARY, (2, *size), generator=generator)
    exact = train(config, epsilon, tensors, inputs, targets, torch.float64)
    theirs = train(config, epsilon, tensors, inputs, targets, torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, config, epsilon, tensors, inputs, targets)
        subprocess.run([program, folder], check=True, timeout=300)
        ours = read_results(folder, exact)
    return exact, theirs, ours


def compare(program, name, config, epsilon, verbose):
    exact, theirs, ours = run(program, config, epsilon)
    wrong, worst = 0, {}
    for what, expected in exact.items():
        error, their_error = error_of(ours[what], expected), error_of(theirs[what], expected)
        limit = LIMIT if epsilon == EPSILON else max(LIMIT, SLACK * their_error)
        agrees = error <= limit  # false for what is no number
        wrong += not agrees
        kind = what.split(".")[0]
        worst[kind] = max(worst.get(kind, (-1.0, 0, "")), (error, their_error, what))
        if verbose or not agrees:
            print(f"  {what}: error {error:.1e}, PyTorch's in float32 {their_error:.1e}")
    print(f"{name}: {len(exact) - wrong} tensors agree" + (f", {wrong} do not" if wrong else ""))
    for error, their_error, what in worst.values():
        print(f"  worst: {error:.1e}, PyTorch's in float32 {their_error:.1e}: {what}")
    return wrong == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the test program test_gpt_model_gradients")
    parser.add_argument("--verbose", action="store_true", help="a line for every tensor")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    agree = []
    for name, config in CONFIGS.items():
        for kind, epsilon in (name, EPSILON), (name + "-usual-epsilon", USUAL_EPSILON):
            agree.append(compare(arguments.program, kind, config, epsilon, arguments.verbose))
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())

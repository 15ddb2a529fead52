#!/usr/bin/env python3
"""The losses of `weft train` beside PyTorch's, from the same initial weights and batches.

    gpt2_losses_in_pytorch.py WEFT FILE [--device cuda|host] [--steps N] [--layers L] [--dim D]
                              [--heads H] [--context T] [--batch B] [--microbatches M]

Trains on the bytes of the text FILE, with AdamW, clipping, a warm-up and a cosine: in bf16 with
autocast on a GPU (default; where PyTorch has none, on the host), in fp32 on the host. Prints both losses now and then, and at the end
the mean of the last ten steps and by what share they differ. Exits with 1 if that is more than 1 %.
"""
import argparse, glob, json, math, os, struct, subprocess, sys, tempfile
import torch
from torch.nn import functional as F

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("weft")
p.add_argument("file")
p.add_argument("--device", choices=["cuda", "host"], default="cuda")
for name, usual in {"steps": 200, "layers": 12, "dim": 768, "heads": 12, "context": 1024, "batch": 32, "microbatches": 4}.items():
    p.add_argument("--" + name, type=int, default=usual)
a = p.parse_args()
V, SEED, RATE, LEAST, WARMUP, CLIP, DECAY = 256, 7, 6e-4, 6e-5, a.steps // 10, 1.0, 0.1

# ---- Weft ----

def weft(folder, *words):
    given = [f"--{n}={getattr(a, n)}" for n in ("layers", "dim", "heads", "context", "batch")]
    command = [a.weft, "train", "--data", a.file, "-m", str(a.microbatches), "--tied", "--ranks", "1", f"--seed={SEED}",
               "--json", "--eval-every", "1000000", *given, *words]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder, text=True).stdout
    return [line["loss"] for line in map(json.loads, out.splitlines()) if "loss" in line and "step" in line]

def read_weights(folder):
    """A checkpoint's tensors, but for moments."""
    found = {}
    for path in glob.glob(os.path.join(folder, "step-*", "part-*.safetensors")):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, about in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__" and not name.endswith(("exp_avg", "exp_avg_sq")):
                begin, end = (8 + size + offset for offset in about["data_offsets"])
                found[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(about["shape"])
    return found

# ---- The same batches (trainer/data/dataset.c) ----

def splitmix(state):
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)

def batch_of(text, step):
    size = len(text) - len(text) // 10
    stream = splitmix((splitmix(SEED) + step) % 2**64)
    begins = [splitmix((stream + row) % 2**64) % (size - a.context) for row in range(a.batch)]
    rows = torch.tensor([list(text[k : k + a.context + 1]) for k in begins])
    return rows[:, :-1], rows[:, 1:]

# ---- PyTorch ----

def norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[name + "weight"], w[name + "bias"], 1e-5)

def linear(w, name, x):
    return F.linear(x, w[name + "weight"], w[name + "bias"])

def loss_of(w, x, y):
    h = w["wte.weight"][x] + w["wpe.weight"][: x.shape[1]]
    for layer in range(a.layers):
        b = f"block.{layer}."
        qkv = linear(w, b + "attn.qkv.", norm(w, b + "ln1.", h)).split(a.dim, dim=2)
        q, k, v = (t.view(*t.shape[:2], a.heads, -1).transpose(1, 2) for t in qkv)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
        h = h + linear(w, b + "attn.proj.", mixed)
        h = h + linear(w, b + "mlp.proj.", F.gelu(linear(w, b + "mlp.fc.", norm(w, b + "ln2.", h)), approximate="tanh"))
    return F.cross_entropy(F.linear(norm(w, "lnf.", h), w["wte.weight"]).view(-1, V).float(), y.reshape(-1))

def rate_of(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return LEAST + 0.5 * (RATE - LEAST) * (1 + math.cos(math.pi * (step - WARMUP) / (a.steps - WARMUP)))

def train(weights, text, device):
    w = {n: t.to(device).clone().requires_grad_() for n, t in weights.items() if n != "lm_head.weight"}
    groups = [{"params": [t for t in w.values() if t.dim() == d], "weight_decay": DECAY * (d == 2)} for d in (1, 2)]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(a.steps):
        x, y = (t.to(device).chunk(a.microbatches) for t in batch_of(text, step))
        total = 0
        for k in range(a.microbatches):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=a.device == "cuda"):
                loss = loss_of(w, x[k], y[k]) / a.microbatches
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses

text = open(a.file, "rb").read()
a.weft, a.file = os.path.abspath(a.weft), os.path.abspath(a.file)
with tempfile.TemporaryDirectory() as folder:
    # A step that changes nothing, for the initial weights.
    weft(folder, "--steps", "1", "--lr", "0", "--lr-min", "0", "--weight-decay", "0", "--checkpoint", "initial",
         "--device", a.device)
    weights = read_weights(os.path.join(folder, "initial"))
    ours = weft(folder, f"--steps={a.steps}", f"--lr={RATE}", f"--lr-min={LEAST}", f"--warmup={WARMUP}", f"--clip={CLIP}",
                f"--weight-decay={DECAY}", "--device", a.device)
theirs = train(weights, text, "cuda" if a.device == "cuda" and torch.cuda.is_available() else "cpu")
for step in sorted({0, 1, *range(0, a.steps, max(a.steps // 10, 1)), a.steps - 1}):
    print(f"step {step + 1:4d}  weft {ours[step]:.5f}  PyTorch {theirs[step]:.5f}")
tail = [sum(losses[-10:]) / len(losses[-10:]) for losses in (ours, theirs)]
share = abs(tail[0] - tail[1]) / tail[1]
print(f"last ten steps: weft {tail[0]:.5f}, PyTorch {tail[1]:.5f}: {100 * share:.3f} % apart (target: 1 % or less)")
sys.exit(share > 0.01)

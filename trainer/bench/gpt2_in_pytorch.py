#!/usr/bin/env python3
"""GPT-2 in PyTorch on one GPU, eager and compiled, beside `weft train --device cuda`: the same
model, batch, optimizer and precision, on random tokens. Prints the time of a step. Without a GPU it
computes on the host, to try it.

    gpt2_in_pytorch.py LAYERS WIDTH HEADS BATCH CONTEXT MICROBATCHES eager|compile...
"""
import os, sys, time, torch, torch.nn as nn, torch.nn.functional as F
L, D, H, B, T, M = map(int, sys.argv[1:7])
V = int(os.environ.get("VOCABULARY", 50304))
device = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the host'}", flush=True)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o, self.up, self.down = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.p = nn.Embedding(V, D), nn.Embedding(T, D)
        self.b = nn.Sequential(*[Block() for _ in range(L)])
        self.n, self.h = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.h.weight = self.e.weight
    def forward(self, x, y):
        h = self.n(self.b(self.e(x) + self.p.weight[: x.shape[1]]))
        return F.cross_entropy(self.h(h).view(-1, V), y.view(-1))
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
for mode in sys.argv[7:]:
    m = GPT().to(device)
    opt = torch.optim.AdamW(m.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    f = torch.compile(m) if mode == "compile" else m
    x = torch.randint(0, V, (M, B // M, T), device=device)
    y = torch.randint(0, V, (M, B // M, T), device=device)
    def step():
        for k in range(M):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = f(x[k], y[k]) / M
            loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
    for _ in range(3): step()
    synchronize(); begin = time.perf_counter(); K = 10
    for _ in range(K): step()
    synchronize(); seconds = (time.perf_counter() - begin) / K
    print(f"torch {mode}: {B}x{T} in {M}: {seconds * 1e3:.1f} ms/step {B * T / seconds:,.0f} tokens/s", flush=True)
    del m, opt, f; torch.cuda.empty_cache() if device == "cuda" else None

"""Weft's trainer beside PyTorch: the same model, batch, microbatches and schedules.

Weft's side is `weft bench train --json`, a thread per rank; with --transport mpi also `mpirun -n 2
weft train` with the same model, a process per rank as PyTorch has, and that is what is compared.
PyTorch's side is

    pipelining   torch.distributed.pipelining over gloo, a process per rank with one thread each:
                 PipelineStage, Schedule*.step(), then the norm of all gradients is reduced, they are
                 clipped, and a fused AdamW updates
    one process  two threads, no pipeline: microbatches one after the other with gradients added up,
                 and the whole batch at once; the better one counts

The model is the one that Weft trains (`weft bench train` says how large): the same parts on the same
stages, attention by scaled_dot_product_attention(). Whether both compute the same is the business of
trainer/tests/test_gpt_pytorch.py. Here PyTorch's losses under each schedule must be those of one
process, and both sides' must fall.

The two take turns, N rounds. A round's figure is the median of its steps, warm-up left out; of the
rounds the median counts. All of it takes three minutes at most; no process outlives the script.
"""

import json
import os
import platform
import statistics
import tempfile
import time

from pytorch_cases import shared

STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "ZBVZeroBubble": 2}
RANKS = 2
STEPS, WARM = 4, 1
RATE, BETAS, EPSILON, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
LIMIT_S = 175  # wall time of everything, about
GROUP_LIMIT_S, WEFT_LIMIT_S = 60, 100  # of one round's
TEXT_BYTES = 65536


# ---- The model ----


def make_parts(torch, shape):
    """The constructors of all parts: the embedding, the blocks, the head."""
    nn, functional = torch.nn, torch.nn.functional
    layers, dim, heads = shape["layers"], shape["dim"], shape["heads"]
    context, vocabulary = shape["context"], shape["vocabulary"]

    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, dim), nn.Embedding(context, dim)
            self.register_buffer("places", torch.arange(context))

        def forward(self, tokens):
            return self.wte(tokens) + self.wpe(self.places)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def attention(self, x):
            rows, tokens, _ = x.shape
            q, k, v = (part.view(rows, tokens, heads, dim // heads).transpose(1, 2)
                       for part in self.qkv(x).split(dim, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(rows, tokens, dim))

        def forward(self, x):
            x = x + self.attention(self.ln1(x))
            return x + self.out(functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.lnf, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)

        def forward(self, x):
            return self.lm_head(self.lnf(x))

    return [Embedding] + [Block] * layers + [Head]


def make_part(torch, constructors, number, layers):
    """As GPT-2 begins; from the part's number alone, however parts are put on stages."""
    torch.manual_seed(1000 + number)
    part = constructors[number]()
    for name, parameter in part.named_parameters():
        if parameter.dim() > 1:
            deviation = 0.02 / (2 * layers)**0.5 if name.startswith(("proj", "out")) else 0.02
            torch.nn.init.normal_(parameter, std=deviation)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return part


def make_stage(torch, shape, stage, stage_count):
    """Blocks are dealt evenly, as Weft does for this model."""
    constructors, layers = make_parts(torch, shape), shape["layers"]
    first = 1 + stage * layers // stage_count if stage > 0 else 0
    end = 1 + (stage + 1) * layers // stage_count if stage + 1 < stage_count else layers + 2
    return torch.nn.Sequential(
        *[make_part(torch, constructors, number, layers) for number in range(first, end)])


def make_loss(torch):
    def loss(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return loss


def make_optimizer(torch, parameters):
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=RATE, betas=BETAS,
                             eps=EPSILON, fused=True)


def make_batch(torch, options, step):
    """Letters, some more often than others; tokens and what follows them."""
    generator = torch.Generator().manual_seed(step)
    size = (options.batch, options.shape["context"] + 1)
    draws = torch.randint(0, 26, (2, *size), generator=generator)
    text = ord("a") + draws.amin(0)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


# ---- PyTorch's pipelining: one rank, in a process of its own ----


class Rank:
    def __init__(self, torch, dist, pipelining, name, options):
        self.torch, self.dist, self.options = torch, dist, options
        self.stage_count = RANKS * STAGES_PER_RANK[name]
        own = shared.stages_of(name, options.rank, RANKS, STAGES_PER_RANK[name])
        self.modules = {s: make_stage(torch, options.shape, s, self.stage_count) for s in own}
        stages = [pipelining.PipelineStage(module, s, self.stage_count, torch.device("cpu"))
                  for s, module in self.modules.items()]
        self.schedule = shared.make_schedule(pipelining, name, stages, options.microbatches,
                                             loss_fn=make_loss(torch))
        self.parameters = [p for module in self.modules.values() for p in module.parameters()]
        self.optimizer = make_optimizer(torch, self.parameters)

    def clip(self):
        torch = self.torch
        squares = torch.stack([p.grad.square().sum() for p in self.parameters]).sum()
        self.dist.all_reduce(squares)
        scale = CLIP / (squares.sqrt() + 1e-6)
        if scale < 1:
            torch._foreach_mul_([p.grad for p in self.parameters], scale.item())

    def step(self, number):
        """The mean loss, on the rank with the last stage."""
        inputs, targets = make_batch(self.torch, self.options, number)
        losses, has_last = [], self.stage_count - 1 in self.modules
        self.schedule.step(*([inputs] if 0 in self.modules else []),
                           **({"target": targets, "losses": losses} if has_last else {}))
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(loss.item() for loss in losses) / len(losses) if has_last else None


def run_schedule(torch, dist, pipelining, name, options):
    rank = Rank(torch, dist, pipelining, name, options)
    losses, times = [], []
    for number in range(STEPS):
        dist.barrier()
        begin = time.monotonic()
        losses.append(rank.step(number))
        dist.barrier()
        times.append((time.monotonic() - begin) * 1e3)
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, losses)
    return {"schedule": name, "step_ms": statistics.median(times[WARM:]),
            "losses": next(found for found in gathered if found[0] is not None)}


def run_rank(rank, options, folder):
    shared.run_group(rank, RANKS, options, folder, GROUP_LIMIT_S, run_schedule)


# ---- PyTorch in one process ----


def run_alone(_rank, options, folder):
    """The whole model on two threads; a line per way to cut the batch."""
    torch = shared.begin_rank(0, options, folder, RANKS)
    print(shared.GROUP_STARTED, flush=True)
    for name, cuts in (("microbatches", options.microbatches), ("whole batch", 1)):
        model, loss_of = make_stage(torch, options.shape, 0, 1), make_loss(torch)
        optimizer, losses, times = make_optimizer(torch, model.parameters()), [], []
        for number in range(STEPS):
            begin, total = time.monotonic(), 0.0
            inputs, targets = make_batch(torch, options, number)
            for x, t in zip(inputs.tensor_split(cuts), targets.tensor_split(cuts)):
                loss = loss_of(model(x), t) / cuts
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            times.append((time.monotonic() - begin) * 1e3)
            losses.append(total)
        print(json.dumps({"schedule": name, "step_ms": statistics.median(times[WARM:]),
                          "losses": losses}), flush=True)


# ---- Weft ----


def write_text(folder):
    """Letters, some more often than others, as `weft bench train` has them."""
    state, letters = 1, bytearray()
    for _ in range(TEXT_BYTES):
        state = (state * 1664525 + 1013904223) % 2**32
        letters.append(ord("a") + min((state >> 24) % 26, (state >> 16) % 26))
    path = os.path.join(folder, "letters.txt")
    with open(path, "wb") as file:
        file.write(letters)
    return path


def run_weft_process(options, document, name):
    """(step in ms of two processes, losses, why there is nothing)"""
    model = document["model"]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        command = [*options.mpirun.split(), "-n", str(RANKS), os.path.join(options.build, "weft"),
                   "train", "--data", write_text(folder), "--schedule", name, "--json",
                   "--steps", str(STEPS), "--eval-every", "0", "--warmup", "0",
                   "--lr", str(RATE)]
        for key in ("layers", "dim", "heads", "context"):
            command += [f"--{key}", str(model[key])]
        command += ["--batch", str(document["batch"]), "-m", str(document["microbatches"])]
        text, why_not = shared.run_command(
            command, WEFT_LIMIT_S, f"mpirun weft train --schedule {name}", env=environment)
    if text is None:
        return None, [], why_not
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    steps = [line for line in lines if "step" in line]
    if len(steps) != STEPS:
        return None, [], f"'mpirun weft train --schedule {name}' has written {len(steps)} steps"
    times = [document["tokens_per_step"] / line["tokens_per_s"] * 1e3 for line in steps]
    return statistics.median(times[WARM:]), [line["loss"] for line in steps], None


def run_weft_processes(options, document, figures):
    """(what was left out, what differs)"""
    for name in [row["schedule"] for row in document["schedules"]]:
        step_ms, losses, why_not = run_weft_process(options, document, name)
        if step_ms is None:
            return [why_not], None
        if losses[-1] >= losses[0]:
            return [], f"Weft's losses over MPI do not fall, {losses}"
        figures.add("weft", name, step_ms)
    return [], None


# ---- Rounds ----


def find_difference(pipelined, alone):
    """What differs from one process, or None: losses, to what float32 gives."""
    expected = next((row["losses"] for row in alone if row["schedule"] == "microbatches"), None)
    for row in pipelined:
        for step, (a, b) in enumerate(zip(row["losses"], expected or [])):
            if abs(a - b) > 1e-3:
                return f"PyTorch's {row['schedule']}, step {step}: loss {a}, and {b} in one process"
    for row in pipelined + alone:
        if row["losses"][-1] >= row["losses"][0]:
            return f"PyTorch's {row['schedule']}: losses do not fall, {row['losses']}"
    return None


class Figures:
    """Steps in ms by side and name, a list with one per round each."""

    def __init__(self):
        self.steps = {}

    def add(self, side, name, step_ms):
        self.steps.setdefault((side, name), []).append(step_ms)

    def add_all(self, side, rows):
        for row in rows:
            self.add(side, row["schedule"], row["step_ms"])

    def step_ms(self, side, name):
        found = self.steps.get((side, name))
        return statistics.median(found) if found else None

    def best(self, side):
        """(name, step in ms) of the side's fastest, or None"""
        found = [(name, statistics.median(steps)) for (of, name), steps in self.steps.items()
                 if of == side]
        return min(found, key=lambda pair: pair[1]) if found else None


def run_torch(options, figures):
    """(what was left out, what differs, whether a rank failed)"""
    pipelined, why_not, broken = shared.run_ranks(run_rank, RANKS, options, GROUP_LIMIT_S)
    figures.add_all("pipelining", pipelined)
    alone, why_not_alone, broken_alone = shared.run_ranks(run_alone, 1, options, GROUP_LIMIT_S)
    figures.add_all("one process", alone)
    left_out = [why for why in (why_not, why_not_alone) if why is not None]
    return left_out, find_difference(pipelined, alone), broken or broken_alone


def run_round(options, figures, has_torch):
    """(Weft's document, what was left out, what differs, whether a rank failed)"""
    document, why_not = shared.run_bench(options, "train", WEFT_LIMIT_S, "--repeats", "1")
    if document is None:
        return None, [why_not], None, False
    over_mpi = options.transport == "mpi"
    for row in document["schedules"]:
        figures.add("weft threads" if over_mpi else "weft", row["schedule"], row["two_rank_step_ms"])
        figures.add("weft one rank", row["schedule"], row["one_rank_step_ms"])
    options.shape, options.batch = document["model"], document["batch"]
    options.microbatches = document["microbatches"]
    difference = None
    if document["last_loss"] >= document["first_loss"]:
        difference = f"Weft's losses do not fall: {document['first_loss']}, {document['last_loss']}"
    left_out = []
    if over_mpi and difference is None:
        left_out, difference = run_weft_processes(options, document, figures)
    if not has_torch or left_out:
        return document, left_out, difference, False
    left_out, torch_difference, broken = run_torch(options, figures)
    return document, left_out, difference or torch_difference, broken


def run_rounds(options, figures, has_torch):
    """As run_round(), of all rounds; the last document. No round that would take too long."""
    begin, longest, done = time.monotonic(), 0.0, 0
    document, left_out, difference, broken = None, [], None, False
    while done < options.rounds and not broken and difference is None:
        round_begin = time.monotonic()
        if round_begin - begin + longest > LIMIT_S:
            left_out.append(f"rounds after {done}: time is up")
            break
        found, why_nots, difference, broken = run_round(options, figures, has_torch)
        document = found or document
        left_out += [why for why in why_nots if why not in left_out]
        if found is None:
            break
        longest, done = max(longest, time.monotonic() - round_begin), done + 1
    options.rounds_done = done
    return document, left_out, difference, broken


# ---- The table ----


def ratio(numerator, denominator):
    return numerator / denominator if numerator and denominator else None


def make_rows(document, figures, options):
    rows = []
    for name in [row["schedule"] for row in document["schedules"]]:
        weft_ms, torch_ms = figures.step_ms("weft", name), figures.step_ms("pipelining", name)
        if torch_ms is None and name in options.names:
            continue
        rows.append({"schedule": name, "weft_ms": weft_ms, "torch_ms": torch_ms,
                     "weft_threads_ms": figures.step_ms("weft threads", name),
                     "ratio": ratio(torch_ms, weft_ms)})
    return rows


def make_summary(figures):
    weft, torch_best = figures.best("weft"), figures.best("pipelining")
    alone = figures.best("one process")
    return {"weft_best": weft, "torch_pipelining_best": torch_best, "torch_one_process_best": alone,
            "weft_one_rank_ms": figures.step_ms("weft one rank", "1F1B"),
            "ratio_best": ratio(torch_best and torch_best[1], weft and weft[1]),
            "ratio_one_process": ratio(alone and alone[1], weft and weft[1])}


def tokens(document, step_ms):
    return "-" if step_ms is None else f"{document['tokens_per_step'] / step_ms * 1e3:.0f}"


def print_rows(document, rows):
    print(f"\n{'2 ranks':<18} {'weft':>9} {'weft':>9} {'torch':>9} {'torch':>9} {'weft':>9}\n"
          f"{'schedule':<18} {'ms':>9} {'tokens/s':>9} {'ms':>9} {'tokens/s':>9} {'/ torch':>9}")
    for row in rows:
        cells = [f"{row[key]:.1f}" if row[key] else "-" for key in ("weft_ms", "torch_ms")]
        times = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        threads = f"   ({row['weft_threads_ms']:.1f} on threads)" if row["weft_threads_ms"] else ""
        print(f"{row['schedule']:<18} {cells[0]:>9} {tokens(document, row['weft_ms']):>9} "
              f"{cells[1]:>9} {tokens(document, row['torch_ms']):>9} {times:>9}{threads}")


def print_summary(document, figures, summary):
    print(f"\n{'without a pipeline':<18} {'ms':>19} {'tokens/s':>9}")
    for side, name, words in (("one process", "microbatches", "torch, 2 threads, microbatches"),
                              ("one process", "whole batch", "torch, 2 threads, whole batch"),
                              ("weft one rank", "1F1B", "weft, 1 thread")):
        step_ms = figures.step_ms(side, name)
        if step_ms is not None:
            print(f"{words:<30} {step_ms:>7.1f} {tokens(document, step_ms):>9}")
    if summary["ratio_best"]:
        print(f"\nBest of weft ({summary['weft_best'][0]}) by best of torch's pipelining "
              f"({summary['torch_pipelining_best'][0]}): {summary['ratio_best']:.2f}; the target is 1.5.")
    if summary["ratio_one_process"]:
        print(f"Best of weft by torch in one process on two threads: "
              f"{summary['ratio_one_process']:.2f}; the target is 1.2.")


def print_report(document, torch_version, rows, figures, summary, left_out, options):
    model = document["model"]
    over = f" over MPI ({options.mpirun.split()[0]})" if options.transport == "mpi" else ""
    print(f"weft {document['version']}{over} and PyTorch {torch_version or '(none)'} over gloo (Python "
          f"{platform.python_version()}): training, {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}\n{model['layers']} blocks, dim {model['dim']}, "
          f"{model['heads']} heads, context {model['context']}, batch {document['batch']} in "
          f"{document['microbatches']} microbatches; {options.rounds_done} rounds in turns")
    for what in left_out:
        print(f"left out: {what}")
    print_rows(document, rows)
    print_summary(document, figures, summary)


def parse_options(words):
    parser = shared.parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="the two take turns; the median counts")
    parser.add_argument("--transport", choices=("threads", "mpi"), default="threads",
                        help="of Weft's two ranks")
    parser.add_argument("--mpirun", default="mpirun --oversubscribe --bind-to none",
                        help="what starts processes on MPI")
    return shared.parse(parser, words, STAGES_PER_RANK)


def main(words):
    options, figures = parse_options(words), Figures()
    shared.stop_on_signals()
    torch, why_no_torch = shared.find_torch(gloo=True)
    torch_version = torch.__version__ if torch is not None else None
    document, left_out, difference, broken = run_rounds(options, figures, torch is not None)
    left_out = ([why_no_torch] if why_no_torch else []) + left_out
    if document is None:
        print("\n".join(f"left out: {what}" for what in left_out))
        return 0
    rows, summary = make_rows(document, figures, options), make_summary(figures)
    if options.json:
        print(json.dumps({"schema": "weft-bench-train-against-pytorch/1", "weft": document["version"],
                          "torch": torch_version, "cores": os.cpu_count(), "left_out": left_out,
                          "difference": difference, "model": document["model"], "runs": rows,
                          "summary": summary}))
    else:
        print_report(document, torch_version, rows, figures, summary, left_out, options)
        if difference is not None:
            print(f"DIFFERENCE: {difference}")
    return 1 if broken or difference is not None else 0

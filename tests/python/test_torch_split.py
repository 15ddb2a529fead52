"""Models that split() cuts into stages: what they train with is what the whole model gives."""

import copy
import subprocess
import sys

import pytest
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn, F = torch.nn, torch.nn.functional

MICROBATCHES = 4


@pytest.fixture(autouse=True)
def few_threads():
    """Ranks are threads; so small a model needs no others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Residual(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Block(nn.Module):
    """With buffers, layers that work in place, and a part without gradients."""

    def __init__(self, width=8):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        with torch.no_grad():
            mean = x.mean()
        return self.relu(self.norm(self.linear(x))) + x + mean


class Stateful(nn.Module):
    """With a constant, a mask by name, and buffers: one that is not kept, one that is set anew."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input, mask=None, doubles=False):
        self.seen = self.seen + input.detach().mean()
        factor = torch.tensor(2.0 if doubles else 1.0)
        for block in self.blocks:
            input = block(input)
        return (input * self.scale * mask).view(input.shape[0], 2, 4).flatten(1) * factor


class UNet(nn.Module):
    """Skips from each layer on the way down to the one on the way up."""

    def __init__(self, width=4):
        super().__init__()
        self.begin = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(4 * width, 4 * width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(8 * width, 2 * width, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(4 * width, width, 2, stride=2)
        self.end = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.begin(x.view(-1, 1, 8, 8)))
        b = torch.relu(self.down1(a))
        c = torch.relu(self.down2(b))
        y = self.up2(torch.cat([torch.relu(self.middle(c)), c], 1))
        y = self.up1(torch.cat([torch.relu(y), b], 1))
        return self.end(torch.cat([torch.relu(y), a], 1)).flatten(1)


class Translator(nn.Module):
    """An encoder, and a decoder whose layers all read what it gives."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.core = nn.Transformer(8, 2, 2, 3, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        words = self.embed(x).view(-1, 4, 2).repeat(1, 1, 4)
        return self.core(words, words.flip(1)).mean(2).repeat(1, 2)


class Tied(nn.Module):
    """One weight begins and ends the model, and another is used twice between."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again = Residual()
        self.layers = nn.ModuleList([Residual(), self.again, Residual(), self.again])
        self.last.weight = self.first.weight

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def by_hand(model, batch, options, loss_fn, m=MICROBATCHES):
    """A loop over the microbatches: losses and gradients of the whole model."""
    losses = []
    x, y = batch
    parts = {k: v.chunk(m) for k, v in options.items() if isinstance(v, torch.Tensor)}
    plain = {k: v for k, v in options.items() if k not in parts}
    for k, (a, b) in enumerate(zip(x.chunk(m), y.chunk(m))):
        loss = loss_fn(model(a, **plain, **{name: v[k] for name, v in parts.items()}), b)
        loss.backward()
        losses.append(loss.item())
    for w in model.parameters():
        if w.grad is not None:
            w.grad /= m
    return tuple(losses)


def first_rows(values, rows):
    return {k: v[:rows] if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def train(model, batch, schedule, options=(), loss_fn=F.mse_loss, bits=True, **how):
    """A step on the stages is one of the whole model."""
    options = dict(options)
    whole = copy.deepcopy(model)
    found = weft_torch.split(
        model, batch[0][:2], kwargs=first_rows(options, 2), **{"stages": 4, **how}
    )
    pipeline = weft_torch.Pipeline(
        found.modules, schedule, loss_fn, graph=found.graph, microbatches=MICROBATCHES
    )
    given = {k: v for k, v in options.items() if isinstance(v, torch.Tensor)}
    for _ in range(2):  # gradients add up
        losses = pipeline.step(batch[0], target=batch[1], **given).losses
        expected = copy.deepcopy(whole)
        expected.zero_grad()
        assert losses == by_hand(expected, batch, options, loss_fn)
        for (name, w), v, u in zip(
            model.named_parameters(), expected.parameters(), whole.parameters()
        ):
            if v.grad is not None:
                u.grad = v.grad if u.grad is None else u.grad + v.grad
            assert (w.grad is None) == (u.grad is None), name
            if w.grad is not None and bits:
                assert torch.equal(w.grad, u.grad), name
            elif w.grad is not None:
                torch.testing.assert_close(w.grad, u.grad, rtol=1e-5, atol=1e-7, msg=name)
        for (name, x), v, u in zip(model.named_buffers(), expected.buffers(), whole.buffers()):
            u.copy_(v)
            assert torch.equal(x, v), name
    return found


def batch_of(rows=12):
    return torch.randn(rows, 8), torch.randn(rows, 8)


def layers(count, activation):
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(8, 8), activation())))


MODELS = {
    "Sequential": lambda: layers(4, nn.GELU),
    "residuals": lambda: nn.Sequential(*(Residual() for _ in range(6))),
    "buffers": lambda: nn.Sequential(*(Block() for _ in range(5))),
    "tied weights": Tied,
    "frozen weights": lambda: nn.Sequential(
        Residual().requires_grad_(False), *(Residual() for _ in range(4))
    ),
}


@pytest.mark.parametrize("skips", ["edges", "relay"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "Interleaved1F1B"])
@pytest.mark.parametrize("name", MODELS)
def test_models_train_with_the_bits_of_the_whole(name, schedule, skips):
    found = train(MODELS[name](), batch_of(), schedule, skips=skips)
    assert (found.graph is None) == (skips == "relay" or name not in ("tied weights",))


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_arguments_by_name_constants_and_buffers(schedule):
    options = {"doubles": True, "mask": torch.rand(12, 8)}
    found = train(Stateful(), batch_of(), schedule, options)
    assert found.graph is not None
    kept = set().union(*(module.state_dict() for module in found.modules))
    assert kept == set(Stateful().state_dict())


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_skips_of_a_u_net_are_edges_of_the_graph(schedule):
    model = UNet()
    batch = torch.randn(8, 64), torch.randn(8, 64)
    cuts = ["down1", "down2", "up2", "up1", "end"]
    found = train(model, batch, schedule, stages=None, cuts=cuts)
    assert str(found.graph) == "0>1,1>2,1>5,2>3,2>4,3>4,4>5"
    assert found.graph.names == ("begin", "down1", "down2..middle", "up2", "up1", "end")
    assert "1>5: relu" in repr(found)
    chain = train(UNet(), batch, schedule, stages=None, cuts=cuts, skips="relay")
    assert chain.graph is None


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_an_encoder_whose_output_all_layers_of_a_decoder_read(schedule):
    cuts = ["core.decoder.layers.0", "core.decoder.layers.1", "core.decoder.layers.2"]
    # Edges bring three gradients for one tensor, which are not summed in the order of a loop.
    found = train(Translator(), batch_of(), schedule, stages=None, cuts=cuts, bits=False)
    assert {"0>1", "0>2", "0>3"} <= set(str(found.graph).split(","))
    train(Translator(), batch_of(), schedule, stages=None, cuts=cuts, skips="relay")


class Detached(nn.Module):
    """A layer that takes no tensor, and one whose output goes on without its gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.aside, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Embedding(4, 8)

    def forward(self, x):
        x = self.first(x)
        table = self.table(torch.arange(4)).mean(0)
        steps = self.aside(x).argmax(1)
        return self.last(x) * (1 + steps[:, None]) + table


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_stages_without_inputs_and_without_gradients(schedule):
    cuts = ["table", "aside", "last"]
    found = train(Detached(), batch_of(), schedule, stages=None, cuts=cuts)
    assert str(found.graph) == "0>1F,0>2F,0>3,1>3,2>3F"
    train(Detached(), batch_of(), schedule, stages=None, cuts=cuts, skips="relay")


def test_weights_are_those_of_the_model_under_its_names():
    model = Tied()
    found = weft_torch.split(model, torch.randn(2, 8), stages=3)
    mine = {name: w for part in found.modules for name, w in part.named_parameters()}
    assert mine.keys() == dict(model.named_parameters()).keys()
    assert all(mine[name] is w for name, w in model.named_parameters())
    assert all(w.grad is None for w in model.parameters())
    sent = [name for names in found.values.values() for name in names]
    assert "first.weight" in sent


def test_dropout_draws_as_in_the_whole():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(3)))
    found = weft_torch.split(model, torch.randn(2, 8), stages=3)
    x = torch.randn(6, 8)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    for part in found.modules:
        (x,) = part(x) if part is not found.modules[-1] else (part(x),)
    assert torch.equal(x, expected)
    with pytest.raises(ValueError, match="were split in train"):
        found.modules[0].eval()
    found.modules[0].train()
    at_rest = weft_torch.split(model.eval(), torch.randn(2, 8), stages=3)
    pipeline = weft_torch.Pipeline(at_rest.modules, "1F1B", microbatches=2)
    x = torch.randn(6, 8)
    assert torch.equal(pipeline.eval(x).output, model(x))


def test_layers_that_work_in_place_stay_with_what_they_change():
    model = layers(3, lambda: nn.ReLU(inplace=True))
    found = weft_torch.split(model, torch.randn(2, 8), stages=3)
    assert found.parts == (("0+1",), ("2+3",), ("4+5",))
    with pytest.raises(ValueError, match=r"can be cut into 3: 0\+1, 2\+3, 4\+5"):
        weft_torch.split(model, torch.randn(2, 8), stages=4)


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, *rest, scale, shift, extra):
        y = self.middle(self.first(x) + rest[0])
        return self.last(y * scale - shift) + extra


def test_arguments_in_another_order_and_given_twice():
    model, x = Calls(), torch.randn(4, 8)
    named = {name: torch.randn(4, 8) for name in ("extra", "shift", "scale")}
    found = weft_torch.split(model, (x, x), kwargs=named, stages=3)
    pipeline = weft_torch.Pipeline(found.modules, "1F1B", graph=found.graph, microbatches=2)
    assert torch.equal(pipeline.eval(x, x, **named).output, model(x, x, **named))


def test_copies_of_stages_have_weights_of_their_own():
    model, x = layers(2, nn.GELU), torch.randn(2, 8)
    found = weft_torch.split(model, x, stages=2)
    copies, expected = copy.deepcopy(found.modules), model(x)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert torch.equal(copies[1](*copies[0](x)), expected)


def test_the_planner_says_where_to_cut():
    model = nn.Sequential(*(Residual() for _ in range(7)))
    x = torch.randn(2, 8)
    found = weft_torch.split(model, x, stages=3, costs=[1, 1, 1, 1, 1, 1, 6])
    assert [len(parts) for parts in found.parts] == [3, 3, 1]
    assert found.parts[2] == ("6",)
    plan = weft.plan(ranks=2, stages_per_rank=2, microbatches=4, costs=found.costs, threads=1)
    planned = weft_torch.split(model, x, stages=plan)
    assert tuple(len(parts) for parts in planned.parts) == plan.stage_parts
    batch = batch_of()
    pipeline = weft_torch.Pipeline(planned.modules, plan, F.mse_loss, graph=planned.graph)
    whole = copy.deepcopy(model)
    assert pipeline.step(batch[0], target=batch[1]).losses == by_hand(whole, batch, {}, F.mse_loss)
    again = weft_torch.split(model, x, stages=3, costs=found.costs)
    assert again.parts == found.parts


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Odd(nn.Module):
    """What torch.export leaves out, or cannot trace."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear, self.calls = kind, nn.Linear(8, 8), 0

    def forward(self, x):
        y = self.linear(x)
        if self.kind == "function":
            y = Straight.apply(y) * y
        elif self.kind == "hook":
            y.register_hook(lambda gradient: gradient * 2)
        elif self.kind == "counter":
            self.calls += 1
            y = y * self.calls
        elif self.kind == "branch" and x.sum() > 0:
            y = y * 2
        return y


@pytest.mark.parametrize("kind", ["function", "hook", "counter", "module hook", "branch"])
def test_what_would_be_computed_otherwise_is_refused(kind):
    model = nn.Sequential(Odd(kind), Odd(kind))
    if kind == "module hook":
        model[1].register_full_backward_hook(lambda part, takes, gives: (takes[0] * 2,))
    said = "cannot trace Sequential" if kind == "branch" else "that is not the model's"
    with pytest.raises(ValueError, match=said):
        weft_torch.split(model, torch.randn(2, 8), stages=2)


def test_a_check_leaves_the_model_and_random_numbers_as_they_are():
    model = nn.Sequential(Block(), Block(), nn.Dropout(0.5))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    weft_torch.split(model, torch.randn(2, 8, generator=torch.Generator()), stages=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(w.grad is None for w in model.parameters())


def test_a_batch_that_is_not_like_the_example():
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(24, 8))
    found = weft_torch.split(model, torch.randn(2, 3, 8), stages=2)
    pipeline = weft_torch.Pipeline(found.modules, "1F1B", F.mse_loss, microbatches=2)
    pipeline.step(torch.randn(10, 3, 8), target=torch.randn(10, 8))
    with pytest.raises(ValueError, match=r"not like the example of split\(\): .*== 3"):
        pipeline.step(torch.randn(4, 4, 8), target=torch.randn(4, 8))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "needs stages or cuts"),
        ({"stages": 2, "cuts": ["1"]}, "needs stages or cuts"),
        ({"stages": 0}, "stages"),
        ({"stages": 4}, "can be cut into 3: 0, 1, 2"),
        (
            {"stages": 2, "costs": [1, 2]},
            "costs has 2 numbers; the model has 3 layers: 0, 1, 2",
        ),
        ({"stages": 2, "costs": {"f": 1}}, "costs has 0 parts"),
        ({"stages": 2, "costs": [1, -2, 3]}, r"costs\[1\]"),
        ({"cuts": ["3"]}, "no layer; the model can be cut before: 1, 2"),
        ({"cuts": ["2", "1"]}, "not behind the cut before it"),
        ({"stages": 2, "skips": "teleport"}, "skips"),
        ({"stages": 2, "kwargs": {"mask": 1}}, "does not take the example: .*mask"),
    ],
)
def test_wrong_arguments_are_refused(how, said):
    model = nn.Sequential(*(Residual() for _ in range(3)))
    with pytest.raises(ValueError, match=said):
        weft_torch.split(model, torch.randn(2, 8), **how)


def test_wrong_kinds_are_refused():
    model = nn.Sequential(Residual(), Residual())
    with pytest.raises(TypeError, match="module must be a module of PyTorch, not int"):
        weft_torch.split(3, torch.randn(2, 8), stages=2)
    with pytest.raises(ValueError, match="input of the example is a list; expected a tensor"):
        weft_torch.split(model, [torch.randn(2, 8)], stages=2)
    with pytest.raises(ValueError, match="the plan has no partition of layers"):
        weft_torch.split(
            model,
            torch.randn(2, 8),
            stages=weft.plan(ranks=2, microbatches=2, threads=1),
        )


# ---- Hugging Face ----


def language_model(kind, **more):
    """Make a small model with random weights: nothing is downloaded."""
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    size = {"vocab_size": 96, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = hf.GPT2Config(
            n_layer=5, n_embd=32, n_head=4, n_positions=32, **none, **size, **more
        )
        return hf.GPT2LMHeadModel(config).train()
    config = hf.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        **size,
        **more,
    )
    return hf.LlamaForCausalLM(config).train()


def next_token_loss(output, target):
    return F.cross_entropy(output.logits.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("skips", ["edges", "relay"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("kind", "tied"), [("gpt2", True), ("gpt2", False), ("llama", False)])
def test_language_models_of_hugging_face(kind, tied, attention, schedule, skips):
    model = language_model(kind, tie_word_embeddings=tied, attn_implementation=attention)
    batch = torch.randint(0, 96, (8, 16)), torch.randint(0, 96, (8, 16))
    mask = torch.ones(8, 16, dtype=torch.long)
    mask[::2, 12:] = 0
    options = {"use_cache": False, "attention_mask": mask}
    found = train(model, batch, schedule, options, next_token_loss, skips=skips)
    assert (found.graph is None) == (skips == "relay")
    weight = "transformer.wte.weight"
    assert tied == any(weight in sent for sent in found.values.values())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_training_has_the_losses_of_the_whole(kind):
    model = language_model(kind, attn_implementation="eager")
    whole = copy.deepcopy(model)
    tokens = torch.randint(0, 96, (8, 16))
    found = weft_torch.split(model, tokens[:2], kwargs={"use_cache": False}, stages=3)
    pipeline = weft_torch.Pipeline(
        found.modules, "1F1B", next_token_loss, graph=found.graph, microbatches=MICROBATCHES
    )
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-2) for one in (model, whole)]
    losses = []
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses.append(pipeline.step(tokens, target=tokens).losses)
        assert losses[-1] == by_hand(whole, (tokens, tokens), {"use_cache": False}, next_token_loss)
        for optimizer in optimizers:
            optimizer.step()
    assert sum(losses[-1]) < 0.9 * sum(losses[0])


def test_a_llama_without_a_mask_has_other_kernels_of_attention_when_traced():
    """Hugging Face gives scaled_dot_product_attention a mask then, and repeats keys and values."""
    batch = torch.randint(0, 96, (8, 16)), torch.randint(0, 96, (8, 16))
    model = language_model("llama", attn_implementation="sdpa")
    train(model, batch, "1F1B", {"use_cache": False}, next_token_loss, bits=False)


# ---- Between processes ----


def job():
    """Of one process: its stage's losses and gradients are those of a loop over the whole."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for skips in ("edges", "relay"):
        torch.manual_seed(0)
        model, (x, y) = Tied(), batch_of()
        whole = copy.deepcopy(model)
        found = weft_torch.split(model, x[:2], stages=ranks, skips=skips)
        pipeline = weft_torch.Pipeline(
            [part if k == rank else None for k, part in enumerate(found.modules)],
            "ZBH1",
            F.mse_loss,
            graph=found.graph,
            microbatches=MICROBATCHES,
            transport="torch",
        )
        losses = pipeline.step(*(x,) * (rank == 0), target=y if rank == ranks - 1 else None).losses
        expected = by_hand(whole, (x, y), {}, F.mse_loss)
        assert losses == (expected if rank == ranks - 1 else ())
        gradients = {name: w.grad for name, w in whole.named_parameters()}
        mine = dict(found.modules[rank].named_parameters())
        assert mine and all(torch.equal(w.grad, gradients[name]) for name, w in mine.items())
    dist.destroy_process_group()


def test_processes_of_torchrun_find_the_same_cuts():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "3", __file__],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    job()

"""Workloads: real models on real data that every machine has already. Data-parallel, seeded, judged on held-out data.

`digits` learns the handwritten digits that ship with scikit-learn with a convolutional net of 1.0 M parameters; `text`
learns the source text of Python's standard library with a GPT of 10.7 M. Nothing is downloaded. No layer keeps running
statistics (as BatchNorm does), so gradients are all that ranks exchange and equal gradients keep ranks equal.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (b, ...) and targets: class indices, int64, (b,) or (b, positions)."""

SPLIT_SEED = 0  # the held-out data are the same in every scenario, whatever its seed
WARM_UP_STEPS = 10  # the learning rate rises over these: large first steps of AdamW cost more than they bring


class WorkloadError(Exception):
    """The workload isn't available as requested: one line with what to do."""


@dataclass(frozen=True)
class Score:
    """On held-out data. accuracy: share of right answers, 0 … 1. loss: mean cross-entropy, nats per answer."""

    accuracy: float
    loss: float


class Task(Protocol):
    """What a workload learns: data, model and rate. Knows nothing of ranks."""

    name: str
    description: str
    source: str  # where the data come from, with their extent
    source_sha256: str
    samples: int  # in the training data
    peak_learning_rate: float

    def build_model(self) -> nn.Module:
        """A model with initial parameters from torch's global generator. Logits (..., classes)."""

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        """The training samples with these indices (b,) in 0 … samples-1, varied by the generator if at all."""

    def held_out(self) -> Iterator[Batch]:
        """All held-out data, always the same."""


class Digits:
    """8x8 images of handwritten digits: 1437 to learn from, 360 held out. Shifted at random by up to a pixel."""

    name = "digits"
    description = "convolutional net, 4 convolutions and 3 linear layers, on 8x8 handwritten digits"
    peak_learning_rate = 2e-3
    held_out_samples = 360

    def __init__(self) -> None:
        images, labels, self.source_sha256 = _digits()
        order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
        kept, learnt = order[: self.held_out_samples], order[self.held_out_samples :]
        self.samples = len(learnt)
        self.source = f"scikit-learn load_digits: {len(learnt)} images to learn from, {len(kept)} held out"
        self._padded = np.pad(images[learnt], ((0, 0), (0, 0), (1, 1), (1, 1)))
        self._labels = labels[learnt]
        self._held_out = torch.from_numpy(images[kept]), torch.from_numpy(labels[kept])

    def build_model(self) -> nn.Module:
        channels, hidden, classes = (32, 64, 128, 64), (544, 512), 10
        layers: list[nn.Module] = []
        width = 1
        for position, outputs in enumerate(channels):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU()]
            if position == len(channels) - 2:
                layers.append(nn.MaxPool2d(2))
            width = outputs
        layers.append(nn.Flatten())
        width *= 4 * 4
        for outputs in hidden:
            layers += [nn.Linear(width, outputs), nn.ReLU()]
            width = outputs
        last = nn.Linear(width, classes)
        layers.append(last)
        model = nn.Sequential(*layers)
        for layer in model:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.normal_(last.weight, std=0.01)  # begins near "every digit is as likely"
        return model

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        rows, columns = generator.integers(0, 3, (2, len(indices), 1, 1))
        grid = np.arange(8)
        sample = indices[:, None, None]
        shifted = self._padded[sample, 0, grid[None, :, None] + rows, grid[None, None, :] + columns]
        return torch.from_numpy(shifted[:, None]), torch.from_numpy(self._labels[indices])

    def held_out(self) -> Iterator[Batch]:
        yield self._held_out


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray, str]:
    """Images float32 (n, 1, 8, 8) in 0 … 1, labels int64 (n,), sha256 of both."""
    from sklearn.datasets import load_digits  # here: it takes a second, and `text` doesn't need it

    data, target = load_digits(return_X_y=True)
    images = (data / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = target.astype(np.int64)
    return images, labels, hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


class Text:
    """Python's standard library, byte by byte: predict the next byte. Every tenth file is held out.

    The text differs between versions of Python: `source_sha256` shows whether two runs learnt from the same bytes.
    """

    name = "text"
    description = "GPT, 6 blocks of width 384 over 64 bytes of context, on the source text of Python's standard library"
    peak_learning_rate = 3e-4
    context = 64
    held_out_windows = 64  # spread evenly over the held-out bytes; more would take longer than an iteration

    def __init__(self) -> None:
        self._learnt, kept, self.source_sha256, files = _standard_library()
        self.samples = len(self._learnt) // self.context - 1
        self.source = (
            f"standard library of Python {sysconfig.get_python_version()}: {files} files, "
            f"{len(self._learnt)} bytes to learn from, {len(kept)} held out"
        )
        starts = np.linspace(0, len(kept) - self.context - 1, self.held_out_windows).astype(np.int64)
        self._held_out = _windows(kept, starts, self.context)

    def build_model(self) -> nn.Module:
        return Gpt(vocabulary=256, context=self.context, width=384, heads=6, blocks=6)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        # Windows stay disjoint between ranks: each begins within its own `context` bytes.
        return _windows(self._learnt, indices * self.context, self.context)

    def held_out(self) -> Iterator[Batch]:
        inputs, targets = self._held_out
        for low in range(0, len(inputs), 16):
            yield inputs[low : low + 16], targets[low : low + 16]


TEXT_BYTES_MAX = 4_000_000  # thousands of iterations of data; reads in well under a second
_NOT_READ = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages", "dist-packages", "__pycache__"}


@functools.cache
def _standard_library() -> tuple[np.ndarray, np.ndarray, str, int]:
    """Bytes to learn from and bytes held out, uint8; sha256 of both; files read. Raises WorkloadError."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if not _NOT_READ & set(name.split("/"))]
    learnt, kept = bytearray(), bytearray()
    files = 0
    for name in names:
        if len(learnt) + len(kept) >= TEXT_BYTES_MAX:
            break
        try:
            text = (root / name).read_bytes()
        except OSError:
            continue
        (kept if files % 10 == 9 else learnt).extend(text)
        files += 1
    if len(learnt) < 100_000 or len(kept) < 10_000:
        raise WorkloadError(
            f"workload text: no sources of the standard library in {root} ({files} files); "
            "use a Python that ships them, or the workload digits"
        )
    digest = hashlib.sha256(learnt + kept).hexdigest()
    return np.frombuffer(learnt, np.uint8), np.frombuffer(kept, np.uint8), digest, files


def _windows(text: np.ndarray, starts: np.ndarray, context: int) -> Batch:
    """Inputs and targets int64 (b, context): the bytes from each start, and the same one byte later."""
    both = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return torch.from_numpy(both[:, :-1]), torch.from_numpy(both[:, 1:])


class Gpt(nn.Module):
    """Decoder-only transformer, pre-norm, output layer tied to the embedding. (b, positions) -> (b, positions, v)."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith(("symbols.weight", "positions.weight", "linear.weight")):
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("residual.weight"):  # keeps the variance of the sum over all blocks
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * blocks))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        hidden = self.symbols(symbols) + self.positions.weight[: symbols.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.symbols.weight)


class GptBlock(nn.Module):
    """Causal self-attention and a two-layer net, each added to what came in. (b, positions, width) both ways."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.ModuleDict({"linear": nn.Linear(width, 3 * width), "residual": nn.Linear(width, width)})
        self.net_norm = nn.LayerNorm(width)
        self.net = nn.ModuleDict({"linear": nn.Linear(width, 4 * width), "residual": nn.Linear(4 * width, width)})

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, positions, width = hidden.shape
        mixed = self.attention["linear"](self.attention_norm(hidden)).view(rows, positions, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention["residual"](attended.transpose(1, 2).reshape(rows, positions, width))
        widened = functional.gelu(self.net["linear"](self.net_norm(hidden)))
        return torch.add(hidden, self.net["residual"](widened))


TASKS: dict[str, Callable[[], Task]] = {"digits": Digits, "text": Text}


class Workload:
    """One rank's share of a task: its model, its batches, its optimiser.

    model: initial parameters follow from the seed alone: the same bits on every rank, without communication.
    optimizer: AdamW; the rate rises over WARM_UP_STEPS and falls to zero along a cosine at `iterations`.
    """

    def __init__(self, task: Task, seed: int, rank: int, workers: int, batch_per_worker: int, iterations: int) -> None:
        if task.samples < workers * batch_per_worker:
            raise WorkloadError(
                f"workload {task.name}: {workers} workers x {batch_per_worker} samples is more than the "
                f"{task.samples} it has to learn from; lower batch_per_worker to {task.samples // workers} or less"
            )
        self.task = task
        self.seed, self.rank, self.workers = seed, rank, workers
        self.batch_per_worker, self.iterations = batch_per_worker, iterations
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = task.build_model()
        # Fused: one pass over the parameters, a third of the time of the other implementations on a CPU.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=task.peak_learning_rate, weight_decay=0.01, fused=True
        )
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def gradient_bytes(self) -> int:
        """float32 bytes that are summed over the ranks in each iteration."""
        return 4 * self.parameters

    def sample_indices(self, iteration: int) -> np.ndarray:
        """Samples (batch_per_worker,) of this rank. Within an epoch no sample comes twice, on any rank.

        What does not fill a batch on all ranks is left out of that epoch; the next epoch shuffles again.
        """
        together = self.workers * self.batch_per_worker
        epoch, step = divmod(iteration, self.task.samples // together)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.task.samples)
            self._epoch = epoch
        first = step * together + self.rank * self.batch_per_worker
        return self._order[first : first + self.batch_per_worker]

    def train_batch(self, iteration: int) -> Batch:
        generator = np.random.default_rng([self.seed, iteration, self.rank])
        return self.task.batch(self.sample_indices(iteration), generator)

    def loss(self, model: nn.Module, iteration: int) -> torch.Tensor:
        """Mean cross-entropy of this rank's batch, a scalar to call `backward` on. model: ours, or DDP around it."""
        inputs, targets = self.train_batch(iteration)
        return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def learning_rate(self, iteration: int) -> float:
        rise = min(1.0, (iteration + 1) / WARM_UP_STEPS)
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, iteration / self.iterations)))
        return self.task.peak_learning_rate * rise * fall

    def step(self, iteration: int) -> None:
        """One step of the optimiser along the gradients, which are dropped then."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(iteration)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def evaluate(self) -> Score:
        right, loss, answers = 0, 0.0, 0
        with torch.no_grad():
            for inputs, targets in self.task.held_out():
                logits, wanted = self.model(inputs).flatten(0, -2), targets.flatten()
                right += int((logits.argmax(1) == wanted).sum())
                loss += float(functional.cross_entropy(logits, wanted, reduction="sum"))
                answers += len(wanted)
        return Score(right / answers, loss / answers)

    def parameter_sha256(self) -> str:
        """Of all parameters' bits, in the model's order."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(np.ascontiguousarray(parameter.detach().numpy()).data)
        return digest.hexdigest()


def build_workload(
    name: str, seed: int, rank: int, workers: int, batch_per_worker: int, iterations: int = 150
) -> Workload:
    """Workload `name` ("digits", "text") for one rank. iterations: at their end the learning rate is zero.

    Raises WorkloadError.
    """
    if name not in TASKS:
        raise WorkloadError(f"no workload {name!r}; there are: {', '.join(TASKS)}")
    return Workload(TASKS[name](), seed, rank, workers, batch_per_worker, iterations)


def compute_on_one_thread() -> None:
    """Makes results repeatable bit by bit on one machine: sums in torch don't depend on how threads share them.

    It concerns the whole process. Ranks share few cores in an emulation: threads of their own would only compete.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

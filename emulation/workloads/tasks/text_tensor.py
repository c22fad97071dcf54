"""The text, learnt by a GPT whose layers can be cut between ranks: tensor parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from emulation.workloads.tasks.text import Gpt, TextTask


class TensorTextTask(TextTask):
    """As `TextTask`, with 8 heads, which 2, 4 or 8 ranks share."""

    name = "tp"
    description = (
        "GPT, 6 blocks of width 384 and 8 heads over 64 bytes of context, on the source text of Python's standard "
        "library, its attention heads and inner layers cut between the ranks"
    )

    def build_model(self) -> nn.Module:
        return Gpt(vocabulary=256, context=self.context, width=384, heads=8, blocks=6, block=SharedBlock)


class SharedBlock(nn.Module):
    """`GptBlock` with layers that `parallelize_module` can cut: queries, keys and values apart."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.net_norm = nn.LayerNorm(width)
        self.net = Net(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return torch.add(hidden, self.net(self.net_norm(hidden)))


class Attention(nn.Module):
    """Causal, over as many heads as its layers have."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query_linear, self.key_linear, self.value_linear = (nn.Linear(width, width) for _ in range(3))
        self.residual = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, positions, _ = hidden.shape
        query, key, value = (
            layer(hidden).view(rows, positions, -1, self.head_width).transpose(1, 2)
            for layer in (self.query_linear, self.key_linear, self.value_linear)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: torch.Tensor = self.residual(attended.transpose(1, 2).reshape(rows, positions, -1))
        return mixed


class Net(nn.Module):
    """Two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4 * width)
        self.residual = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.residual(functional.gelu(self.linear(hidden)))
        return narrowed

"""Lightning's Trainer on the switch: DDPStrategy takes the backend's name.

    torchrun --standalone --nproc-per-node 2 examples/lightning_trainer.py [--backend gloo]

Through the switch: the gradients, and the mean of what is logged with sync_dist=True. The rest is Gloo's.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    backend = parser.parse_args().backend

    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(256, 16)
    data = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16
    )  # Lightning gives each rank a part
    model = Regression()
    workers = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=workers,
        num_nodes=int(os.environ["WORLD_SIZE"]) // workers,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    total = sum(parameter.double().abs().sum() for parameter in model.parameters())
    print(
        f"rank {trainer.global_rank}: loss {trainer.callback_metrics['loss']:.4f}, parameters {total:.6f}", flush=True
    )


if __name__ == "__main__":
    main()

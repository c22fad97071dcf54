"""PsOptimizer: train against a parameter server that keeps the weights. This line takes the place of the optimiser:

    optimizer = PsOptimizer.join(model.parameters(), "zeromq", rank, workers, servers,
                                 config=PsConfig(len(workers), mode="ssp", staleness=3, learning_rate=0.1))

and the loop stays as it is: `optimizer.zero_grad(); loss.backward(); optimizer.step()`. Workers run their own loops
over their own data; nothing else is shared, and buffers (BatchNorm's) stay each worker's own. A gradient leaves as soon
as backward has made it, the first layers' with the highest priority; `step` waits for the weights.

The step itself is the servers' (SGD with momentum and weight decay, see PsConfig): each gradient is one step in the
asynchronous modes, so n workers take n steps where synchronous training takes one; divide the learning rate by n to
compare. In modes "bsp" and "backup" the servers step once per round with the mean.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from switchagg.errors import SwitchaggError
from transport.contracts.group_contract import Array
from transport.group.ps_group import PsOptions, open_ps_client
from transport.links.link import Address
from transport.ps.coded import CodedPushes
from transport.ps.config import PsConfig
from transport.torch.feedback import codec_state, load_codec_state


@dataclass
class _Tensor:
    """A parameter, and what is in flight for it. weights: where its answer comes, on the host."""

    parameter: torch.nn.Parameter
    weights: Array
    gradient: Array | None = None
    future: "Future[Array] | None" = None


class WeightsClient(Protocol):
    """The part of a `transport.group.ps_group.PsClient` that the optimiser uses."""

    @property
    def pushes(self) -> CodedPushes | None: ...

    def init(self, key: int, array: Array) -> "Future[Array]": ...

    def push_pull(self, key: int, gradient: Array, weights: Array, *, priority: int = 0) -> "Future[Array]": ...

    def pull(self, key: int, weights: Array) -> "Future[Array]": ...

    def close(self) -> None: ...


class PsOptimizer:
    """Pushes gradients, pulls weights. parameters: of one model, the same on all workers, in forward order.

    client: its config's tensor_bytes should be those of `tensor_bytes(parameters)`, as `join` does it. Parameters of
    float64 travel as float64, and all others as float32. The constructor waits until all workers are there: rank 0's
    weights are everybody's from then on. Raises AggregationFailed when the job fails; later calls raise it again.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], client: WeightsClient) -> None:
        self.client = client
        self._tensors = [_Tensor(p, _host_copy(p)) for p in parameters if p.requires_grad]
        self._holds_back = False
        for future in [client.init(key, tensor.weights) for key, tensor in enumerate(self._tensors)]:
            future.result()
        for tensor in self._tensors:
            _put(tensor)
        self._hooks = [
            tensor.parameter.register_post_accumulate_grad_hook(self._pusher(key))
            for key, tensor in enumerate(self._tensors)
        ]

    @classmethod
    def join(
        cls,
        parameters: Iterable[torch.nn.Parameter],
        link: str,
        rank: int,
        workers: Sequence[Address],
        servers: Sequence[Address],
        *,
        config: PsConfig,
        job: str = "ps",
        options: PsOptions = PsOptions(timeout_s=300.0),  # noqa: B008  # frozen
    ) -> "PsOptimizer":
        """Join the job as worker `rank`; see `transport.group.ps_group.open_ps_client`. `close` ends the client too."""
        tensors = list(parameters)
        sized = replace(config, workers=len(workers), servers=len(servers), tensor_bytes=tensor_bytes(tensors))
        client = open_ps_client(link, rank, workers, servers, config=sized, job=job, options=options)
        try:
            return cls(tensors, client)
        except BaseException:
            client.close()
            raise

    def step(self) -> None:
        """Wait for the weights that answer this iteration's gradients. A parameter that had none pushes zeros: its
        clock must go on. With gradients that were held back, push them first."""
        for key, tensor in enumerate(self._tensors):
            if tensor.future is None:
                self._push(key, tensor)
        for tensor in self._tensors:
            assert tensor.future is not None
            tensor.future.result()
            tensor.future = tensor.gradient = None
            _put(tensor)

    def pull(self) -> None:
        """Put the servers' weights as they are now into the model: what others have pushed is in them."""
        for future in [self.client.pull(key, tensor.weights) for key, tensor in enumerate(self._tensors)]:
            future.result()
        for tensor in self._tensors:
            _put(tensor)

    def zero_grad(self) -> None:
        """Forget the gradients, as torch.optim does."""
        for tensor in self._tensors:
            tensor.parameter.grad = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside this context, backward passes only add up gradients; the next one outside, or `step`, pushes them."""
        self._holds_back = True
        try:
            yield
        finally:
            self._holds_back = False

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank's codec, by the parameters' places; each rank saves its own, between iterations; {}
        without a codec. Weights are the model's; the servers' momentum isn't saved."""
        return codec_state(self.client.pushes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`. Raises ValueError for one of another codec, or another rank."""
        load_codec_state(self.client.pushes, state)

    def close(self) -> None:
        """Leave the job and detach from the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.client.close()

    def __enter__(self) -> "PsOptimizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pusher(self, key: int) -> Callable[[torch.Tensor], None]:
        def push(_parameter: torch.Tensor) -> None:
            if not self._holds_back:
                self._push(key, self._tensors[key])

        return push

    def _push(self, key: int, tensor: _Tensor) -> None:
        if tensor.future is not None:
            raise SwitchaggError(
                "a second backward pass before step(): put all but the last into `with optimizer.no_sync():`"
            )
        gradient = tensor.parameter.grad
        if gradient is None:
            tensor.gradient = tensor.weights * 0
        else:
            dtype = torch.float64 if gradient.dtype == torch.float64 else torch.float32
            flat = gradient.detach().to("cpu", dtype).reshape(-1).contiguous()
            tensor.gradient = flat.numpy()
        assert tensor.gradient is not None
        tensor.future = self.client.push_pull(key, tensor.gradient, tensor.weights, priority=key)


def tensor_bytes(parameters: Iterable[torch.nn.Parameter]) -> tuple[int, ...]:
    """The bytes that travel for each parameter, for PsConfig."""
    return tuple(p.numel() * (8 if p.dtype == torch.float64 else 4) for p in parameters if p.requires_grad)


def _host_copy(parameter: torch.nn.Parameter) -> Array:
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    array: Any = parameter.detach().to("cpu", dtype, copy=True).reshape(-1).contiguous().numpy()
    return array  # type: ignore[no-any-return]


def _put(tensor: _Tensor) -> None:
    """Only here, between iterations: autograd doesn't see it if weights change during a backward pass."""
    with torch.no_grad():
        tensor.parameter.copy_(torch.from_numpy(tensor.weights).view_as(tensor.parameter))

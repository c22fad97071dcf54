"""MetricsServer: answers Prometheus over HTTP with numbers that are read when it asks, and at no other time."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from switchagg.errors import SwitchaggError
from switchagg.job import Address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LOOPBACK = "127.0.0.1"
PATH = "/metrics"


def metrics_address(text: str, what: str) -> Address:
    """(host, port) of HOST:PORT, or of a port on loopback. what: the option or variable. Raises SwitchaggError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise SwitchaggError(f"{what} {text}: not understood; allowed: PORT or HOST:PORT, like 127.0.0.1:9464")
    return host, int(port)


def is_open(host: str) -> bool:
    """Whether other hosts may reach it."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


class _Registry:
    """What `prometheus_client` asks for metrics."""

    def __init__(self, collect: "Callable[[], Iterable[Metric]]") -> None:
        self._collect = collect

    def collect(self) -> "Iterable[Metric]":
        return self._collect()


class MetricsServer:
    """Serves http://HOST:PORT/metrics from now until `close`.

    address: port 0 takes any; `url` says which. collect: called in a thread of its own for each request; if it raises,
    the answer is 500, which Prometheus takes for a target that is down. what: the option or variable, for errors.
    Raises SwitchaggError where the address can't be had, or the library is missing.
    """

    def __init__(self, address: Address, collect: "Callable[[], Iterable[Metric]]", what: str) -> None:
        try:
            from prometheus_client import start_http_server
        except ModuleNotFoundError as error:
            raise SwitchaggError(f"{what}: it needs prometheus_client: pip install 'switchagg[metrics]'") from error
        host, port = address
        registry: Any = _Registry(collect)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            remedy = "choose another address, or end what holds it"
            raise SwitchaggError(f"{what} {host}:{port}: {error.strerror}; {remedy}") from error
        self.address: Address = host, self._server.server_port

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    def close(self) -> None:
        """Free the port; again is allowed."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""Addresses as people write them, and our own as the switch will see it."""

import socket
from urllib.parse import urlsplit

from switchagg.errors import JobError
from switchagg.job import Address


def with_secret(address: Address, secret: int) -> Address:
    """As a link knows a peer that proves itself by a number in its messages; 0: it doesn't."""
    return (f"{address[0]}/{secret:x}", address[1]) if secret else address


def parse_endpoint(endpoint: str, what: str = "switch address") -> Address:
    """(host, port) of "tcp://host:port". Raises JobError that names the expected form."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "tcp" or parts.path or parts.query:
        raise JobError(f"{what} {endpoint!r}: expected tcp://HOST:PORT, for example tcp://10.0.0.1:5555")
    return host, port


def resolve_host(host: str) -> str:
    """The IPv4 literal of a host. Raises JobError."""
    try:
        return socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0]  # type: ignore[return-value]
    except (OSError, UnicodeError) as error:
        raise JobError(f"host {host!r} has no IPv4 address: {error}") from error


def check_own(host: str, what: str, remedy: str) -> None:
    """Raise JobError for a host that no interface of this machine has; a wildcard is allowed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("" if host == "*" else resolve_host(host), 0))
        except OSError as error:
            raise JobError(f"{what}: no interface of this host has the address {host}; {remedy}") from error


def tcp_fault(host: str, port: int, timeout_s: float = 4.0) -> str:
    """Why no connection to a TCP port comes about, and what to do; "" if one does. The timeout is longer than the three
    seconds that it takes a host to learn that nobody on its link has an address."""
    try:
        with socket.create_connection((host, port), timeout_s):
            return ""
    except ConnectionRefusedError:
        option = "" if host.startswith("127.") else f" --control tcp://{host}:{port}"
        return f"{host} refuses TCP {port}: start it there: `switchagg switch{option}`; or a firewall rejects it"
    except TimeoutError:
        return f"nothing comes back from {host}: correct the address, or open TCP {port} in the firewalls on the way"
    except OSError as error:
        return f"{error.strerror}: correct the address, or open TCP {port} in the firewalls on the way"


def facing(host: str, port: int) -> str:
    """Our own IPv4 address on the way to a host; nothing is sent. Raises JobError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise JobError(f"no route to switch {host}: {error}") from error
        return str(probe.getsockname()[0])

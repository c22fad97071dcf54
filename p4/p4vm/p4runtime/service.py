"""The P4Runtime service of one switch: its calls, one method each, over gRPC.

    with RuntimeService(switch, "127.0.0.1:9559", cpu_port=510) as service:
        host = Host(switch, ports, SoftwareSwitchOptions(control=…, turns=service.turns, cpu=service.cpu.port))
        host.run()

gRPC's threads only wait: what touches the switch is done between packets, by the host's thread (`Turns`).
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.host.turns import Turns
from p4vm.p4runtime.clients import Clients, RuntimeClient
from p4vm.p4runtime.cpu import CpuPort, packet_in
from p4vm.p4runtime.refusal import INVALID, RuntimeRefusal, unimplemented
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline
from p4vm.p4runtime.state import RuntimeState
from p4vm.source import P4Error

API_VERSION = "1.5.0"
THREADS = 32
"""gRPC's threads, of which each controller's stream takes one."""
MESSAGE_BYTES_MAX = 64 << 20
Answer = TypeVar("Answer")
Config = p4runtime_pb2.SetForwardingPipelineConfigRequest
ConfigQuery = p4runtime_pb2.GetForwardingPipelineConfigRequest
_CONTENT = re.compile(rb'"sha256": "([0-9a-f]{64})"')
"""In the JSON that stands for a compiled program: what the program was."""
CANONICAL = {status.value[0]: status for status in grpc.StatusCode}


class RuntimeService:
    """Serves `address` (HOST:PORT) from the start until `close`. device: its id. cpu_port: the program's port for
    controllers, None: none. Raises P4Error: the address can't be had."""

    def __init__(self, switch: ControlledSwitch, address: str, device: int = 0, cpu_port: int | None = None) -> None:
        self.switch = switch
        self.turns = Turns()
        self.cpu = None if cpu_port is None else CpuPort(cpu_port)
        self.clients = Clients(device)
        self.state = RuntimeState(ForwardingPipeline(switch))
        program = Path(switch.program.file)
        self._content = hashlib.sha256(program.read_bytes()).hexdigest() if program.is_file() else ""
        self._config = p4runtime_pb2.ForwardingPipelineConfig(p4info=self.state.pipeline.info)
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "p4runtime"), options=options)
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.turns.close()
            raise P4Error(f"can't serve P4Runtime at {address}: expected HOST:PORT that is free")
        self._server.start()
        self._packets = threading.Thread(target=self._packets_in, name="packet-in", daemon=True)
        self._packets.start()

    def close(self) -> None:
        """Ends all calls and streams."""
        self.turns.close()
        self.clients.close()
        if self.cpu is not None:
            self.cpu.close()
        self._server.stop(grace=0.2).wait()
        self._packets.join()

    def __enter__(self) -> "RuntimeService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _packets_in(self) -> None:
        while self.cpu is not None and (data := self.cpu.receive()):
            self.clients.tell_primary(packet_in(self.state.pipeline, data))

    def _answer(self, context: Any, work: Callable[[], Answer]) -> Answer:
        """The result of `work`, done in the switch's thread; a refusal ends the call with its code."""
        try:
            return self.turns.carry_out(work)
        except RuntimeRefusal as error:
            context.abort(CANONICAL[error.code], error.message)
            raise
        except TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the switch has ended, or doesn't answer")
            raise

    # ---- state

    def Write(self, request: Any, context: Any) -> Any:
        def write() -> list[Any]:
            self.clients.check_primary(request)
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise unimplemented("updates that are all carried out or none")
            return [self._update(update) for update in request.updates]

        errors = self._answer(context, write)
        if any(error.canonical_code for error in errors):
            _abort_batch(context, errors)
        return p4runtime_pb2.WriteResponse()

    def _update(self, update: Any) -> Any:
        try:
            self.state.write(update)
        except RuntimeRefusal as error:
            return p4runtime_pb2.Error(canonical_code=error.code, message=error.message, space="p4vm")
        return p4runtime_pb2.Error()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        def read() -> list[Any]:
            self.clients.check_device(request)
            return [part for entity in request.entities for part in self.state.read(entity)]

        yield p4runtime_pb2.ReadResponse(entities=self._answer(context, read))

    # ---- the program

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        def take() -> None:
            self.clients.check_primary(request)
            action = request.action
            if action == Config.COMMIT:
                return
            if action not in (Config.VERIFY, Config.VERIFY_AND_COMMIT, Config.RECONCILE_AND_COMMIT):
                what = "no action" if not action else f"action {Config.Action.Name(action)}"
                raise RuntimeRefusal(INVALID, f"{what}: expected VERIFY_AND_COMMIT; the program runs already")
            content = _CONTENT.search(request.config.p4_device_config)
            if content is not None and content.group(1).decode() != self._content:
                raise RuntimeRefusal(
                    INVALID, f"the program is not {self.switch.program.file} as it runs here; start it again"
                )
            pipeline = ForwardingPipeline(self.switch, request.config.p4info)
            if action == Config.VERIFY:
                return
            if action == Config.VERIFY_AND_COMMIT:
                self.switch.reset_state()
            self.state = RuntimeState(pipeline)
            self._config = request.config

        self._answer(context, take)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        def give() -> Any:
            self.clients.check_device(request)
            answer = p4runtime_pb2.GetForwardingPipelineConfigResponse()
            answer.config.CopyFrom(self._config)
            if request.response_type in (ConfigQuery.COOKIE_ONLY, ConfigQuery.DEVICE_CONFIG_AND_COOKIE):
                answer.config.ClearField("p4info")
            if request.response_type in (ConfigQuery.COOKIE_ONLY, ConfigQuery.P4INFO_AND_COOKIE):
                answer.config.ClearField("p4_device_config")
            return answer

        return self._answer(context, give)

    def Capabilities(self, request: Any, context: Any) -> Any:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # ---- a controller's stream

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        client = RuntimeClient()
        ends: list[RuntimeRefusal] = []

        def listen() -> None:
            try:
                for request in requests:
                    self._on_message(client, request)
            except RuntimeRefusal as error:
                ends.append(error)
            except Exception:  # the client is gone
                pass
            self.clients.leave(client)

        threading.Thread(target=listen, name="controller", daemon=True).start()
        while (message := client.messages.get()) is not None:
            yield message
        if ends:
            context.abort(CANONICAL[ends[0].code], ends[0].message)

    def _on_message(self, client: RuntimeClient, request: Any) -> None:
        """Raises RuntimeRefusal where the stream ends."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self.clients.arbitrate(client, request.arbitration)
            return
        try:
            if kind != "packet":
                raise unimplemented(f"{kind or 'nothing'} on the stream")
            if not self.clients.is_primary(client):
                raise RuntimeRefusal(code_pb2.PERMISSION_DENIED, "packets are taken from the primary controller alone")
            if self.cpu is None:
                raise RuntimeRefusal(
                    code_pb2.FAILED_PRECONDITION, "the switch has no CPU port; start it with --cpu-port"
                )
            self.cpu.send(self.state.pipeline, request.packet)
        except RuntimeRefusal as error:
            message = p4runtime_pb2.StreamMessageResponse()
            message.error.canonical_code, message.error.message = error.code, error.message
            if kind == "packet":
                message.error.packet_out.packet_out.CopyFrom(request.packet)
            client.send(message)


def _abort_batch(context: Any, errors: list[Any]) -> None:
    """Ends a Write of which some updates failed: a p4.v1.Error for each update, in order."""
    first = next(error for error in errors if error.canonical_code)
    status = status_pb2.Status(code=code_pb2.UNKNOWN, message=first.message)
    for error in errors:
        packed = any_pb2.Any()
        packed.Pack(error)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, first.message)

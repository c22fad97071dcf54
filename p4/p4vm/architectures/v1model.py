"""v1model, as bmv2's simple_switch runs it."""

from p4vm.architectures.description import Architecture, Input, Move, PacketPath, Pass, Source, Step

DROP_PORT = 511
STATE = ("headers", "metadata", "standard")
REPLICAS = (PacketPath.MULTICAST, PacketPath.CLONE_I2E, PacketPath.CLONE_E2E)

V1MODEL = Architecture(
    name="v1model",
    package="V1Switch",
    include="v1model.p4",
    records=STATE,
    roles=("parser", "verify", "ingress", "egress", "compute", "deparser"),
    ingress=Pass(
        (
            Input("standard.ingress_port", Source.PORT, (PacketPath.NORMAL,)),
            Input("standard.ingress_global_timestamp", Source.TIME_US, (PacketPath.NORMAL,)),
            Input("standard.packet_length", Source.LENGTH),
            Input("standard.instance_type", Source.PATH),
        ),
        (
            Step(Move.PARSE, "parser", STATE, "standard.parser_error"),
            Step(Move.RUN, "verify", ("headers", "metadata")),
            Step(Move.RUN, "ingress", STATE),
            Step(Move.CLONE, "parser", ("headers",), parsed_with="standard.ingress_port"),
            Step(Move.RESUBMIT),
            Step(Move.MULTICAST, "", STATE, "standard.mcast_grp"),
            Step(Move.DROP, field="standard.egress_spec", equals=DROP_PORT),
            Step(Move.UNICAST, "", STATE, "standard.egress_spec"),
        ),
    ),
    egress=Pass(
        (
            Input("standard.egress_port", Source.PORT),
            Input("standard.egress_spec", Source.ZERO),
            Input("standard.egress_rid", Source.INSTANCE, REPLICAS),
            Input("standard.instance_type", Source.PATH),
            Input("standard.packet_length", Source.LENGTH),
            Input("standard.enq_timestamp", Source.TIME_US),
            Input("standard.deq_timedelta", Source.ZERO),
            Input("standard.enq_qdepth", Source.DEPTH),
            Input("standard.deq_qdepth", Source.DEPTH),
            Input("standard.egress_global_timestamp", Source.TIME_US),
        ),
        (
            Step(Move.RUN, "egress", STATE),
            Step(Move.CLONE, "", ("headers",)),
            Step(Move.DROP, field="standard.egress_spec", equals=DROP_PORT),
            Step(Move.RUN, "compute", ("headers", "metadata")),
            Step(Move.DEPARSE, "deparser", ("headers",)),
            Step(Move.RECIRCULATE),
            Step(Move.SEND),
        ),
    ),
    paths=(0, 0, 5, 1, 2, 6, 4),
    listed="metadata",
    functions=frozenset(
        [
            "random",
            "hash",
            "digest",
            "mark_to_drop",
            "clone",
            "clone3",
            "clone_preserving_field_list",
            "resubmit",
            "resubmit_preserving_field_list",
            "recirculate",
            "recirculate_preserving_field_list",
            "truncate",
            "verify_checksum",
            "verify_checksum_with_payload",
            "update_checksum",
            "update_checksum_with_payload",
            "log_msg",
            "assert",
            "assume",
        ]
    ),
    externs={
        name: name
        for name in (
            "register",
            "counter",
            "direct_counter",
            "meter",
            "direct_meter",
            "action_profile",
            "action_selector",
            "Checksum16",
        )
    },
    properties={name: name for name in ("implementation", "counters", "meters")},
)

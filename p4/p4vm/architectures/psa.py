"""The Portable Switch Architecture 1.2. Where its specification leaves a choice, bmv2's psa_switch decides.

All six kinds of metadata between blocks are passed: normal, clone, resubmit and recirculate. The ingress deparser runs
for every packet, so that it fills these and packs digests also where the packet is dropped or resubmitted. Copies of
clones have class of service 0.
"""

from p4vm.architectures.description import Architecture, Input, Move, PacketPath, Pass, Source, Step

PORT_RECIRCULATE = 0xFFFF_FFFA
FORWARDED = (PacketPath.UNICAST, PacketPath.MULTICAST)

PSA = Architecture(
    name="psa",
    package="PSA_Switch",
    include="psa.p4",
    records=(
        "ingress_headers",
        "ingress_metadata",
        "ingress_parser_input",
        "resubmit_metadata",
        "recirculate_metadata",
        "ingress_input",
        "ingress_output",
        "clone_i2e_metadata",
        "normal_metadata",
        "egress_headers",
        "egress_metadata",
        "egress_parser_input",
        "clone_e2e_metadata",
        "egress_input",
        "egress_output",
        "egress_deparser_input",
    ),
    roles=("ingress parser", "ingress", "ingress deparser", "egress parser", "egress", "egress deparser"),
    ingress=Pass(
        (
            Input("ingress_parser_input.ingress_port", Source.PORT),
            Input("ingress_parser_input.packet_path", Source.PATH),
            Input("ingress_input.ingress_port", Source.PORT),
            Input("ingress_input.packet_path", Source.PATH),
            Input("ingress_input.ingress_timestamp", Source.TIME_US),
            Input("ingress_output.drop", Source.TRUE),
        ),
        (
            Step(
                Move.PARSE,
                "ingress parser",
                (
                    "ingress_headers",
                    "ingress_metadata",
                    "ingress_parser_input",
                    "resubmit_metadata",
                    "recirculate_metadata",
                ),
                "ingress_input.parser_error",
            ),
            Step(Move.RUN, "ingress", ("ingress_headers", "ingress_metadata", "ingress_input", "ingress_output")),
            Step(
                Move.DEPARSE,
                "ingress deparser",
                (
                    "clone_i2e_metadata",
                    "resubmit_metadata",
                    "normal_metadata",
                    "ingress_headers",
                    "ingress_metadata",
                    "ingress_output",
                ),
            ),
            Step(
                Move.CLONE,
                "",
                ("clone_i2e_metadata",),
                "ingress_output.clone",
                session="ingress_output.clone_session_id",
            ),
            Step(Move.DROP, field="ingress_output.drop"),
            Step(Move.RESUBMIT, "", ("resubmit_metadata",), "ingress_output.resubmit"),
            Step(Move.MULTICAST, "", ("ingress_output", "normal_metadata"), "ingress_output.multicast_group"),
            Step(Move.UNICAST, "", ("ingress_output", "normal_metadata"), "ingress_output.egress_port"),
        ),
    ),
    egress=Pass(
        (
            Input("egress_parser_input.egress_port", Source.PORT),
            Input("egress_parser_input.packet_path", Source.PATH),
            Input("egress_input.egress_port", Source.PORT),
            Input("egress_input.packet_path", Source.PATH),
            Input("egress_input.instance", Source.INSTANCE),
            Input("egress_input.egress_timestamp", Source.TIME_US),
            Input("egress_input.class_of_service", Source.FIELD, FORWARDED, "ingress_output.class_of_service"),
            Input("egress_deparser_input.egress_port", Source.PORT),
        ),
        (
            Step(
                Move.PARSE,
                "egress parser",
                (
                    "egress_headers",
                    "egress_metadata",
                    "egress_parser_input",
                    "normal_metadata",
                    "clone_i2e_metadata",
                    "clone_e2e_metadata",
                ),
                "egress_input.parser_error",
            ),
            Step(Move.RUN, "egress", ("egress_headers", "egress_metadata", "egress_input", "egress_output")),
            Step(
                Move.DEPARSE,
                "egress deparser",
                (
                    "clone_e2e_metadata",
                    "recirculate_metadata",
                    "egress_headers",
                    "egress_metadata",
                    "egress_output",
                    "egress_deparser_input",
                ),
            ),
            Step(
                Move.CLONE, "", ("clone_e2e_metadata",), "egress_output.clone", session="egress_output.clone_session_id"
            ),
            Step(Move.DROP, field="egress_output.drop"),
            Step(
                Move.RECIRCULATE,
                "",
                ("recirculate_metadata",),
                "egress_deparser_input.egress_port",
                equals=PORT_RECIRCULATE,
            ),
            Step(Move.SEND),
        ),
    ),
    functions=frozenset({"assert", "assume"}),
    externs={
        "Register": "register",
        "Counter": "counter",
        "DirectCounter": "direct_counter",
        "Meter": "meter",
        "DirectMeter": "direct_meter",
        "ActionProfile": "action_profile",
        "ActionSelector": "action_selector",
        "Hash": "Hash",
        "InternetChecksum": "InternetChecksum",
        "Random": "Random",
        "Digest": "Digest",
        "PacketReplicationEngine": "PacketReplicationEngine",
        "BufferingQueueingEngine": "BufferingQueueingEngine",
    },
    properties={
        "psa_implementation": "implementation",
        "psa_direct_counter": "counters",
        "psa_direct_meter": "meters",
    },
    algorithms={"ones_complement16": "csum16", "target_default": "crc32"},
)

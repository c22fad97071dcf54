"""Names of data planes, by what they need."""

from switchagg.dataplane.plane_kinds import DATAPLANES

IN_PROCESS = tuple(name for name, kind in DATAPLANES.items() if not kind.in_kernel)
WITHOUT_P4 = tuple(name for name in IN_PROCESS if not DATAPLANES[name].program)

"""The errors with which a run may end."""


class ScenarioError(Exception):
    """The scenario (or a command line that overrides it) is wrong: one line, for the user; exit code 2."""


class WorkloadError(Exception):
    """The workload isn't available as requested: one line with what to do."""


class RunFailed(Exception):
    """A run could not start or finish: one line with what failed and what to do; exit code 1."""

"""What a run may end with; a wrong scenario is `emulation.scenario.ScenarioError`."""


class WorkloadError(Exception):
    """The workload isn't available as requested: one line with what to do."""


class RunFailed(Exception):
    """A run could not start or finish: one line with what failed and what to do; exit code 1."""

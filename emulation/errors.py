"""What a run may end with; a wrong scenario is `emulation.scenario.ScenarioError`."""


class RunFailed(Exception):
    """A run could not start or finish: one line that says what failed and the remedy; exit code 1."""

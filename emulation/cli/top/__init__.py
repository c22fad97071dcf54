"""`switchagg top`: a running switch and its jobs, live.

Only `emulation.cli.main` imports it. Start reading in `top_command.py`; `switch_rates.py` makes rates of two status
answers, `top_tables.py` lines of text of them, `live_screen.py` shows these on a terminal.
"""

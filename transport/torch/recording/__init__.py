"""Records a user's training, unchanged, as a trace of torch.profiler in which layers have names.

Started on each rank as a program of its own, `python -m transport.torch.recording`, by `switchagg profile`.
Start at recorder.py.
"""

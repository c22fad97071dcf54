"""Profiles: the computing and communication of a model's iteration, read from files, for virtual time.

Imported by scenarios and by virtual time; imports neither them nor PyTorch.
Start at model_profile.py (a model) and graph.py (what ranks do), then profile_formats.py.
"""

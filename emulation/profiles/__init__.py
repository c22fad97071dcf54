"""What an iteration of a model computes and sends, without the model: from files, for virtual time.

Imported by scenarios and by virtual time; imports neither them nor PyTorch.
Start at model_profile.py (a model) and graph.py (what ranks do), then table.py.
"""

"""The compiled core: C behind the same verbs as the Python beside it, optional everywhere."""

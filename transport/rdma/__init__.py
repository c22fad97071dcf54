"""RDMA with the shape of verbs: over UDP in user space (soft.py), or on hardware."""

"""The benchmark: allreduce and data planes beside their baselines, with what limited each figure (README.md here)."""

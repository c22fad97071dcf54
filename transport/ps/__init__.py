"""The parameter server: keys sharded over servers that sum, or keep weights; BSP, backup workers, SSP, ASP, DC-ASGD."""

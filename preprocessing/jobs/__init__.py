"""One preprocessing job on many processes: items, leases, MPI ranks, progress."""

"""Between clients and the machines that run their programs: queue, fairness, leases, worker nodes."""

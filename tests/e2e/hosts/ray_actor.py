"""A Ray actor on this machine; prints the driver's process id, the actor's, and what the actor worked out."""

import os

import ray


@ray.remote(num_cpus=1)
class Calculator:
    """Lives in a worker process."""

    def answer(self, left: int, right: int) -> tuple[int, int]:
        """Its process id and the product."""
        return os.getpid(), left * right


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 1024 * 1024, log_to_driver=False)
    pid, found = ray.get(Calculator.remote().answer.remote(6, 7))
    ray.shutdown()
    print(os.getpid(), pid, found)

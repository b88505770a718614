"""Draw cost, memory and the gain by threads against the number of users.

python benchmarks/scale.py --threads 2 > scale.json
python benchmarks/draw_scale.py scale.json docs/images/scale.png
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    source, target = sys.argv[1:]
    with open(source) as file:
        entries = json.load(file)["scale"]
    users = [entry["users"] for entry in entries]
    figure, (left, right, last) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    left.plot(users, [entry["update_us"] for entry in entries], "o-", label="random order")
    left.plot(users, [entry["near_update_us"] for entry in entries], "s--", label="in spans of 1,024 users")
    left.set(xscale="log", xlabel="users", ylabel="microseconds per model update", ylim=(0, None))
    left.legend(fontsize=8)
    right.plot(users, [entry["peak_gb"] for entry in entries], "o-", label="peak of the process")
    each = [(entry["state_bytes"] + entry["data_bytes"]) * entry["users"] / 1e9 for entry in entries]
    right.plot(users, each, "s--", label="data and state of a run")
    right.set(xscale="log", yscale="log", xlabel="users", ylabel="GB")
    right.legend(fontsize=8)
    last.plot(users, [entry["thread_speedup"] for entry in entries], "o-")
    last.set(xscale="log", xlabel="users", ylabel=f"{entries[0]['threads']} threads, times as fast", ylim=(0, None))
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main()

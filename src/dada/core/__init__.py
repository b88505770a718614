"""The numbers of the method, each once: losses, regularizers, steps, problem, graph, schedule."""

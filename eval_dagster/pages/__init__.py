"""Pages for people: reports of the gate, the samples of a result, and the overview of all results."""

"""Cases of metrics of the log-probabilities of choices."""

from writing import Case, choices, metric

SCORED = [
    choices({" bark": -1.0, " meow": -3.0, " I do not know": -2.0}, " bark"),
    choices({" bark": -1.0, " meow": -0.5, " I do not know": -2.0}, [" bark"]),
    choices({" bark": -1.0, " meow": -3.0, "i don't know": -0.2}, [" bark", " purr"]),
    choices({" a": -1.0, " a long answer": -2.0, "none": -4.0}, [" a long answer"]),
    choices({"Größe": -700.0, "": -800.0}, ["Größe"]),
    choices({"": -1.0, "b": -2.0}, [""]),
    choices({"a": -1.0}, ["b"]),
    choices({"a": -1.0, "b": -1.0}, []),
]
LOGLIKELIHOODS: list[Case] = [
    *metric("loglikelihood.accuracy_loglikelihood", "AccuracyLoglikelihood AccuracyNormLoglikelihood", SCORED),
    *(
        case | {"shared": True}
        for case in metric(
            "loglikelihood.accuracy_loglikelihood",
            "PartialEvalAccuracy",
            [
                choices({" end": value}, truth, id=number)
                for number, (value, truth) in enumerate([(-1.0, "True"), (-2.0, "False"), (-3.0, "True"), (-2.0, "False"), (0.0, "True")])
            ],
        )
    ),
    *metric("loglikelihood.bits_per_byte", "BitsPerByteLoglikelihood", SCORED),
    *metric("loglikelihood.confidence_weighted_accuracy", "ConfidenceWeightedAccuracy", SCORED),
    *metric("loglikelihood.confidence_weighted_accuracy", "ConfidenceWeightedAccuracy", SCORED, len_normalised=False),
    *metric("loglikelihood.dcs", "DistributionalCorrectnessScore", SCORED),
    *metric("loglikelihood.dcs", "DistributionalCorrectnessScore", SCORED, lc=2.0, lw=0.5),
    # The package refuses a text as the gold answer, which its guide writes; here, it is the only one of a list.
    *metric("loglikelihood.probability_mass", "ProbabilityMass ProbabilityMassNorm", SCORED[1:]),
    *metric("loglikelihood.ternary", "TernaryScore", SCORED),
    *metric("loglikelihood.ternary", "TernaryScore", SCORED, lc=2.0, lw=3.0, len_normalised=False),
    *metric(
        "efficiency.bytes_per_sequence_position",
        "BytesLoglikelihood SequencePositionsLoglikelihood",
        [choices({"a": -1.0}, "a", concat_compression=[7, 3]), choices({"a": -1.0}, "a")],
    ),
]

-- Wilson's 95 % interval of a share: successes of n independent samples. Null without samples.
create macro wilson_interval(successes, n) as
case
    when n > 0 then {
        'low': greatest(
            0.0,
            (
                successes / n + 1.9207294103470943 / n
                - 1.959963984540054 * sqrt((successes / n * (1 - successes / n) + 0.9603647051735472 / n) / n)
            ) / (1 + 3.8414588206941885 / n)
        ),
        'high': least(
            1.0,
            (
                successes / n + 1.9207294103470943 / n
                + 1.959963984540054 * sqrt((successes / n * (1 - successes / n) + 0.9603647051735472 / n) / n)
            ) / (1 + 3.8414588206941885 / n)
        )
    }
end

-- Student's 95 % interval of a mean of n independent samples, by their standard deviation. Null below three samples, or if all are equal.
create macro mean_interval(mean, deviation, n) as
case
    when n > 2 and deviation > 0 then {
        -- The quantile of Student's distribution by its expansion in 1 / degrees of freedom (Abramowitz and Stegun 26.7.5).
        'low': mean - deviation / sqrt(n) * (
            1.959963984540054 + 2.3722712 / (n - 1) + 2.8224986 / (n - 1) ** 2 + 2.5558497 / (n - 1) ** 3 + 1.5895341 / (n - 1) ** 4
        ),
        'high': mean + deviation / sqrt(n) * (
            1.959963984540054 + 2.3722712 / (n - 1) + 2.8224986 / (n - 1) ** 2 + 2.5558497 / (n - 1) ** 3 + 1.5895341 / (n - 1) ** 4
        )
    }
end

-- One row per training run, eval (null: the mean of its evals), metric and step: the score with its band, the noise, and where it left its band.
with results as (
    select
        checkpoints.family,
        checkpoints.step,
        metrics.*,
        concat_ws('|', metrics.aggregation, metrics.metric_version, metrics.samples_version, metrics.questions_version) as like_with_like
    from metrics
    inner join checkpoints
        on metrics.model = checkpoints.model
    where metrics.is_headline and metrics.value is not null
),

comparable as (
    -- Of each curve, the results of the same questions by the same metric: those of most steps, then the newest.
    select
        family,
        eval,
        metric,
        like_with_like
    from results
    group by family, eval, metric, like_with_like
    qualify row_number() over (partition by family, eval order by count(*) desc, max(materialized_at) desc, metric, like_with_like) = 1
),

curves as (
    select results.*
    from results
    inner join comparable
        using (family, eval, metric, like_with_like)
),

means as (
    -- Of scores from 0 to 1, the higher the better, at the steps at which all of them are known.
    select
        family,
        step,
        any_value(model) as model,
        avg(value) as value,
        -- The evals have different questions, so that the squares of half the widths add up.
        avg(value) - sqrt(sum((value - ci_low) ** 2)) / count(*) as ci_low,
        avg(value) + sqrt(sum((ci_high - value) ** 2)) / count(*) as ci_high,
        sum(n)::bigint as n,
        sum(n_not_asked)::bigint as n_not_asked,
        min(estimate) as estimate,  -- `history` before `plain`
        count(*) as n_evals,
        string_agg(eval, ',' order by eval) as evals
    from curves
    where bound_low = 0 and bound_high = 1 and higher_is_better
    group by family, step
    qualify n_evals = max(n_evals) over (partition by family) and n_evals > 1
),

points as (
    select
        family,
        eval,
        metric,
        step,
        model,
        value,
        ci_low,
        ci_high,
        n,
        n_not_asked,
        estimate,
        1 as n_evals,
        higher_is_better,
        like_with_like
    from curves
    union all by name
    select
        family,
        null as eval,
        'mean' as metric,
        step,
        model,
        value,
        ci_low,
        ci_high,
        n,
        n_not_asked,
        estimate,
        n_evals,
        true as higher_is_better,
        evals as like_with_like
    from means
),

ordered as (
    select
        *,
        row_number() over curve as nth,
        count(*) over (partition by family, eval, metric) as n_steps,
        case when higher_is_better then max(value) over curve else min(value) over curve end as best_so_far
    from points
    window curve as (partition by family, eval, metric order by step)
),

noisy as (
    -- The last quarter of the steps, at least 5 and at most 30; unknown for fewer than 10 steps.
    select
        family,
        eval,
        metric,
        count(*) as n_noise,
        stddev_samp(value) / nullif(abs(avg(value)), 0) as noise
    from ordered
    where n_steps >= 10 and nth > n_steps - least(30, greatest(5, n_steps // 4))
    group by family, eval, metric
),

rivals as (
    -- The last checkpoint of each training run, and each other model.
    select
        eval,
        metric,
        like_with_like,
        arg_max(value, step) as value
    from curves
    group by family, eval, metric, like_with_like
    union all by name
    select
        eval,
        metric,
        concat_ws('|', aggregation, metric_version, samples_version, questions_version) as like_with_like,
        value
    from metrics
    where is_headline and value is not null and model not in (select model from checkpoints)
    union all by name
    select
        null as eval,
        'mean' as metric,
        evals as like_with_like,
        arg_max(value, step) as value
    from means
    group by family, evals
),

spread as (
    select
        eval,
        metric,
        like_with_like,
        count(*) as n_models,
        (max(value) - min(value)) / nullif(abs(avg(value)), 0) as signal
    from rivals
    group by eval, metric, like_with_like
    having n_models > 1
),

pairs as (
    -- Each step against each earlier one: the distance of the values in half widths of the interval of their difference, by the limits that
    -- face each other (Newcombe 1998, method 10; Zou and Donner 2008).
    select
        late.family,
        late.eval,
        late.metric,
        late.nth,
        early.nth as early_nth,
        case when late.higher_is_better then late.value - early.value else early.value - late.value end as rise,
        abs(late.value - early.value) / nullif(
            case
                when late.value > early.value then sqrt((late.value - late.ci_low) ** 2 + (early.ci_high - early.value) ** 2)
                else sqrt((late.ci_high - late.value) ** 2 + (early.value - early.ci_low) ** 2)
            end,
            0
        ) as half_widths
    from ordered as late
    inner join ordered as early
        on late.family = early.family
        and late.eval is not distinct from early.eval
        and late.metric = early.metric
        and late.nth > early.nth
),

tested as (
    -- The chance of any false alarm in a curve is at most 5 %: half for rises above the first step, half for falls below an earlier one. The
    -- k-th comparison with the first step has the share 1 / (k (k + 1)); its k comparisons with earlier steps divide such a share.
    select
        *,
        0.025 / ((nth - 1) * nth) as rise_level,
        0.025 / ((nth - 1) * nth * (nth - 1)) as fall_level
    from pairs
),

limits as (
    -- Quantiles of the normal distribution for one side of a two-sided level (Abramowitz and Stegun 26.2.23).
    select
        *,
        sqrt(-2 * ln(rise_level / 2)) as u,
        sqrt(-2 * ln(fall_level / 2)) as w
    from tested
),

changes as (
    select
        family,
        eval,
        metric,
        nth,
        case
            when
                bool_or(
                    rise < 0
                    and half_widths * 1.959963984540054 > w - (2.515517 + 0.802853 * w + 0.010328 * w ** 2)
                    / (1 + 1.432788 * w + 0.189269 * w ** 2 + 0.001308 * w ** 3)
                )
                then 'fell'
            when
                bool_or(
                    rise > 0
                    and early_nth = 1
                    and half_widths * 1.959963984540054 > u - (2.515517 + 0.802853 * u + 0.010328 * u ** 2)
                    / (1 + 1.432788 * u + 0.189269 * u ** 2 + 0.001308 * u ** 3)
                )
                then 'rose'
        end as change
    from limits
    group by family, eval, metric, nth
)

select
    ordered.family,
    ordered.eval,
    ordered.metric,
    ordered.step,
    ordered.model,
    ordered.value,
    ordered.ci_low,
    ordered.ci_high,
    ordered.n,
    ordered.n_not_asked,
    ordered.estimate,
    ordered.n_evals,
    ordered.higher_is_better,
    ordered.best_so_far,
    changes.change,
    min(case when changes.change is not null then ordered.step end) over curve as left_band_at,
    min(case when changes.change = 'fell' then ordered.step end) over curve as fell_at,
    spread.signal,
    spread.n_models,
    noisy.noise,
    noisy.n_noise,
    spread.signal / nullif(noisy.noise, 0) as signal_to_noise
from ordered
left join changes
    on ordered.family = changes.family
    and ordered.eval is not distinct from changes.eval
    and ordered.metric = changes.metric
    and ordered.nth = changes.nth
left join noisy
    on ordered.family = noisy.family
    and ordered.eval is not distinct from noisy.eval
    and ordered.metric = noisy.metric
left join spread
    on ordered.eval is not distinct from spread.eval
    and ordered.metric = spread.metric
    and ordered.like_with_like = spread.like_with_like
window curve as (partition by ordered.family, ordered.eval, ordered.metric)
order by ordered.family, ordered.eval nulls last, ordered.metric, ordered.step

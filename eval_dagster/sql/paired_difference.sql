-- One row per eval and metric that is a mean: model_a against model_b on the samples that both have a value for.
create macro paired_difference(model_a, model_b) as table
with means as (
    -- A metric that is no mean of its samples has no difference a sample.
    select
        eval,
        metric,
        higher_is_better
    from metrics
    where model = model_a and aggregation = 'micro' and subject is null and coalesce(estimate, '') != 'history'
),

pairs as (
    select
        a.eval,
        a.metric,
        a.cluster,
        a.value - b.value as difference,
        case when means.higher_is_better then a.value - b.value else b.value - a.value end as advantage
    from scores as a
    inner join scores as b
        on a.eval = b.eval and a.metric = b.metric and a.sample_id = b.sample_id
    inner join means
        on a.eval = means.eval and a.metric = means.metric
    -- The samples of an estimate by history were chosen: they are not like the others.
    where a.model = model_a and b.model = model_b and a.value is not null and b.value is not null
        and (a.eval, model_b) not in (select (eval, model) from metrics where estimate = 'history')
),

differences as (
    select
        eval,
        metric,
        count(*) as n_common,
        avg(difference) as difference,
        count(*) filter (where advantage > 0) as a_better,
        count(*) filter (where advantage < 0) as b_better
    from pairs
    group by eval, metric
),

residuals as (
    select
        pairs.eval,
        pairs.metric,
        pairs.cluster,
        sum(pairs.difference - differences.difference) / nullif(1 - count(*) / any_value(differences.n_common), 0) as residual
    from pairs
    inner join differences
        on pairs.eval = differences.eval and pairs.metric = differences.metric
    group by pairs.eval, pairs.metric, pairs.cluster
),

variances as (
    -- The jackknife over clusters, as `estimate_mean` has it; null where there is one only.
    select
        eval,
        metric,
        sum(residual * residual) * (count(*) - 1) / count(*) as squares
    from residuals
    group by eval, metric
)

select
    differences.eval,
    differences.metric,
    differences.n_common,
    differences.difference,
    sqrt(variances.squares) / differences.n_common as stderr,
    differences.a_better,
    differences.b_better
from differences
inner join variances
    on differences.eval = variances.eval and differences.metric = variances.metric
order by differences.eval, differences.metric

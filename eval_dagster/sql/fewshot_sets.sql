-- One row per eval, model, metric and set of few-shot examples, where an eval has several: the score with it, and how far all are apart.
with answered as (
    -- A metric that is no mean of its samples has no score a sample.
    select
        scores.eval,
        scores.model,
        scores.metric,
        prompts.fewshot_set,
        scores.value
    from scores
    inner join metrics
        on scores.eval = metrics.eval
        and scores.model = metrics.model
        and scores.metric = metrics.metric
        and metrics.aggregation = 'micro'
        and metrics.subject is null
    inner join prompts
        on metrics.eval = prompts.eval
        and metrics.model = prompts.model
        and metrics.prompt_version = prompts.prompt_version
        and scores.sample_id = prompts.sample_id
    where prompts.fewshot_set is not null and scores.value is not null and coalesce(prompts.variant, 'default') = 'default'
),

sets as (
    select
        eval,
        model,
        metric,
        fewshot_set,
        avg(value) as value,
        count(*) as n,
        coalesce(var_samp(value), 0) as variance
    from answered
    group by eval, model, metric, fewshot_set
),

spreads as (
    select
        eval,
        model,
        metric,
        stddev_samp(value) as spread,
        -- Each sample has one set: the means differ by their samples, too.
        sqrt(coalesce(sum(variance * (n - 1)) / nullif(sum(n - 1), 0), 0) * avg(1 / n)) as spread_by_chance
    from sets
    group by eval, model, metric
    having count(*) > 1
)

select
    sets.eval,
    sets.model,
    sets.metric,
    sets.fewshot_set,
    sets.value,
    sqrt(sets.variance / sets.n) as stderr,
    sets.n,
    spreads.spread,
    spreads.spread_by_chance
from sets
inner join spreads
    on sets.eval = spreads.eval and sets.model = spreads.model and sets.metric = spreads.metric
order by sets.eval, sets.model, sets.metric, sets.fewshot_set

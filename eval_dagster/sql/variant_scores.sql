-- One row per eval, model, metric, aggregation and variant of the prompt, where an eval has variants: the metric with this prompt alone.
with stored as (
    select
        eval,
        model,
        metric,
        aggregation,
        is_headline,
        higher_is_better,
        unnest(
            from_json(
                variants -> 'scores',
                '[{"variant": "VARCHAR", "value": "DOUBLE", "stderr": "DOUBLE", "ci_low": "DOUBLE", "ci_high": "DOUBLE", "n": "BIGINT",'
                || ' "n_errors": "BIGINT"}]'
            )
        ) as score
    from internal._current_metrics
    where variants is not null
)

select
    eval,
    model,
    metric,
    aggregation,
    score['variant'] as variant,
    score['value'] as value,
    score['stderr'] as stderr,
    score['ci_low'] as ci_low,
    score['ci_high'] as ci_high,
    score['n'] as n,
    score['n_errors'] as n_errors,
    is_headline,
    higher_is_better
from stored
order by eval, model, metric, aggregation, variant != 'default', variant

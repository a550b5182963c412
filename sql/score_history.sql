-- One row per eval, model, headline metric and materialization: how a score moved, which inputs moved with it, and where it left its band.
with ordered as (
    select
        *,
        row_number() over (partition by eval, model, metric order by materialized_at) as materialization,
        lag(value) over (partition by eval, model, metric order by materialized_at) as previous_value,
        lag(dataset_version) over (partition by eval, model, metric order by materialized_at) as previous_dataset,
        lag(prompt_version) over (partition by eval, model, metric order by materialized_at) as previous_prompt,
        lag(model_version) over (partition by eval, model, metric order by materialized_at) as previous_model,
        lag(model_content_version) over (partition by eval, model, metric order by materialized_at) as previous_content,
        lag(metric_version) over (partition by eval, model, metric order by materialized_at) as previous_metric
    from metrics_history
    where is_headline
)

select
    eval,
    model,
    metric,
    materialization,
    materialized_at,
    value,
    stderr,
    n,
    value - previous_value as difference,
    list_filter(
        [
            if(dataset_version != previous_dataset, 'dataset', null),
            if(prompt_version != previous_prompt, 'prompt', null),
            if(model_version != previous_model and coalesce(model_content_version != previous_content, true), 'model', null),
            if(model_version != previous_model and model_content_version = previous_content, 'engine', null),
            if(metric_version != previous_metric, 'metric', null)
        ],
        lambda what: what is not null
    ) as changed,
    (eval, model, metric, materialized_at) in (select (eval, model, metric, materialized_at) from change_points) as is_change_point
from ordered
order by eval, model, metric, materialized_at

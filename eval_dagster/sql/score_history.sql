-- One row per eval, model, headline metric and materialization: how a score moved, which inputs moved with it, and where it left its band.
with headlines as (
    select
        *,
        coalesce(model_declared_version, model_content_version) as declared_version
    from metrics_history
    where is_headline
),

ordered as (
    select
        *,
        row_number() over (partition by eval, model, metric order by materialized_at) as materialization,
        lag(value) over (partition by eval, model, metric order by materialized_at) as previous_value,
        lag(materialized_at) over (partition by eval, model, metric order by materialized_at) as previous_at,
        lag(dataset_version) over (partition by eval, model, metric order by materialized_at) as previous_dataset,
        lag(prompt_version) over (partition by eval, model, metric order by materialized_at) as previous_prompt,
        lag(model_version) over (partition by eval, model, metric order by materialized_at) as previous_model,
        lag(model_content_version) over (partition by eval, model, metric order by materialized_at) as previous_content,
        lag(declared_version) over (partition by eval, model, metric order by materialized_at) as previous_declared,
        lag(metric_version) over (partition by eval, model, metric order by materialized_at) as previous_metric
    from headlines
),

compared as (
    select
        *,
        case when changed_since = previous_at then changed_inputs end as known_inputs
    from ordered
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
    n_not_asked,
    estimate,
    value - previous_value as difference,
    list_filter(
        [
            -- Versions alone do not tell a changed row from a changed limit: used only where nothing better was written down.
            case when coalesce(list_contains(known_inputs, 'data'), dataset_version != previous_dataset) then 'data' end,
            case when list_contains(known_inputs, 'samples') then 'samples' end,
            case when coalesce(list_contains(known_inputs, 'prompt'), prompt_version != previous_prompt) then 'prompt' end,
            case when declared_version != previous_declared then 'model' end,
            case when model_content_version != previous_content and declared_version = previous_declared then 'endpoint' end,
            case when model_version != previous_model and model_content_version = previous_content then 'engine' end,
            case when metric_version != previous_metric then 'metric' end
        ],
        lambda what: what is not null
    ) as changed,
    (eval, model, metric, materialized_at) in (select (eval, model, metric, materialized_at) from change_points) as is_change_point
from compared
order by eval, model, metric, materialized_at

-- One row per eval and model: how much of the headline's error bar the draw of the answers makes, and how much the choice of the questions.
with headlines as (
    select
        eval,
        model,
        metric
    from metrics
    -- The samples of an estimate by history were chosen, so that their mean is not its score.
    where is_headline and subject is null and aggregation = 'micro' and coalesce(estimate, '') != 'history'
),

samples as (
    select
        scores.eval,
        scores.model,
        scores.metric,
        scores.value,
        len(scores.text_values) as n_texts,
        case when len(scores.text_values) > 1 then list_aggregate(scores.text_values, 'var_samp') end as variance
    from scores
    inner join headlines
        on scores.eval = headlines.eval and scores.model = headlines.model and scores.metric = headlines.metric
    where scores.value is not null and scores.error is null and coalesce(scores.variant, 'default') = 'default'
),

parts as (
    select
        eval,
        model,
        metric,
        count(*) as n_samples,
        any_value(n_texts) as n_texts,
        avg(value) as value,
        -- Of one text: the mean over the questions of the variance of a question's texts.
        avg(variance) as prediction_variance,
        var_samp(value) as variance
    from samples
    group by eval, model, metric
),

apart as (
    select
        *,
        case when prediction_variance is not null then greatest(0, variance - prediction_variance / n_texts) end as data_variance
    from parts
)

select
    eval,
    model,
    metric,
    n_samples,
    n_texts,
    value,
    prediction_variance,
    data_variance,
    sqrt(prediction_variance / n_texts / n_samples) as prediction_stderr,
    sqrt(data_variance / n_samples) as data_stderr,
    sqrt(variance / n_samples) as stderr,
    case when prediction_variance is not null then least(1, prediction_variance / n_texts / nullif(variance, 0)) end as prediction_share
from apart
order by eval, model

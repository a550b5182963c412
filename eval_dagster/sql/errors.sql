-- One row per score that could not be computed, with the reason.
select
    eval,
    model,
    sample_id,
    sample_name,
    subject,
    metric,
    error
from scores
where error is not null
order by eval, model, sample_id, metric

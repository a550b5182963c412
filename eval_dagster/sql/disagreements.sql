-- One row per sample, metric and pair of models that score it differently, the better answer first.
with means as (
    -- A metric that is no mean of its samples has no score a sample.
    select
        eval,
        model,
        metric,
        higher_is_better
    from metrics
    where aggregation = 'micro' and subject is null
)

select
    better.eval,
    better.metric,
    better.sample_id,
    better.sample_name,
    better.subject,
    better.model as better_model,
    worse.model as worse_model,
    better.score as better_value,
    worse.score as worse_value,
    better.prompt,
    better.gold,
    better.answer as better_answer,
    worse.answer as worse_answer
from sample_results as better
inner join sample_results as worse
    on better.eval = worse.eval
    and better.metric = worse.metric
    and better.sample_id = worse.sample_id
inner join means
    on better.eval = means.eval
    and better.model = means.model
    and better.metric = means.metric
    and case when means.higher_is_better then better.score > worse.score else better.score < worse.score end
order by better.eval, better.metric, better.sample_id, better_model, worse_model

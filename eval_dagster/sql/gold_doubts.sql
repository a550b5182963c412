-- One row per eval and sample to which at least three good models, and no other good one, give one wrong answer: its label may be wrong.
with good as (
    -- Right on seven samples of ten or more, so that they know something.
    select
        eval,
        model,
        metric
    from metrics
    where is_headline and higher_is_better and value >= 0.7 and bound_low = 0 and bound_high = 1
),

answered as (
    select
        results.eval,
        results.model,
        results.sample_id,
        results.sample_name,
        results.subject,
        results.prompt,
        results.answer,
        results.gold,
        results.score
    from sample_results as results
    inner join good
        on results.eval = good.eval and results.model = good.model and results.metric = good.metric
    where results.choices is not null and results.error is null
)

select
    eval,
    sample_id,
    any_value(sample_name) as sample_name,
    any_value(subject) as subject,
    any_value(trim(answer)) as answer,
    any_value(gold) as gold,
    count(*) as n_models,
    list(model order by model) as models,
    any_value(prompt) as prompt
from answered
group by eval, sample_id
having count(*) >= 3 and max(score) = 0 and count(distinct trim(answer)) = 1
order by n_models desc, eval, sample_id

-- One row per eval, model and bin of confidence with samples: how sure a model is of the choices that it finds most probable, and how often it is right.
with choices as (
    select
        p.eval,
        p.model,
        p.gold_index,
        r.choice_logprobs,
        list_position(r.choice_logprobs, list_max(r.choice_logprobs)) as chosen
    from prompts as p
    inner join responses as r
        on p.eval = r.eval and p.model = r.model and p.sample_id = r.sample_id and p.request_id = r.request_id
    where
        len(p.choices) > 1 and len(p.gold_index) > 0 and r.error is null
        -- The samples of an estimate by history were chosen: they are not like the others.
        and (p.eval, p.model) not in (select (eval, model) from metrics where estimate = 'history')
),

answers as (
    select
        eval,
        model,
        -- The softmax of the log-probabilities, not normalised by length, as the metric `expected_calibration_error` has it.
        1 / list_sum(list_transform(choice_logprobs, lambda logprob: exp(logprob - choice_logprobs[chosen]))) as confidence,
        list_contains(gold_index, chosen - 1)::integer as is_correct  -- positions count from 0 there, from 1 here
    from choices
),

bins as (
    select
        eval,
        model,
        -- 15 bins of equal widths. A bin holds its upper edge.
        least(greatest(ceil(confidence * 15), 1), 15)::integer as bin,
        avg(confidence) as confidence,
        avg(is_correct) as accuracy,
        sum(is_correct) as n_correct,
        count(*) as n
    from answers
    where confidence is not null and isfinite(confidence)
    group by eval, model, bin
)

select
    eval,
    model,
    bin,
    (bin - 1) / 15 as confidence_low,
    bin / 15 as confidence_high,
    confidence,
    accuracy,
    wilson_interval(n_correct, n)['low'] as ci_low,
    wilson_interval(n_correct, n)['high'] as ci_high,
    n,
    sum(n * abs(accuracy - confidence)) over (partition by eval, model)
    / sum(n) over (partition by eval, model) as expected_calibration_error
from bins
order by eval, model, bin

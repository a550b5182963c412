-- One row per wrongly chosen answer of a log-likelihood eval, the most confident mistake first. A tie with a correct choice is none.
with choices as (
    select
        p.eval,
        p.model,
        p.sample_id,
        p.sample_name,
        p.subject,
        p.prompt,
        p.choices,
        p.gold,
        p.gold_index,
        r.choice_logprobs,
        list_position(r.choice_logprobs, list_max(r.choice_logprobs)) as chosen
    from prompts as p
    inner join responses as r
        on p.eval = r.eval and p.model = r.model and p.sample_id = r.sample_id and p.request_id = r.request_id
    where p.choices is not null and r.error is null
)

select
    eval,
    model,
    sample_id,
    sample_name,
    subject,
    choices[chosen] as answer,
    gold,
    1 / list_sum(list_transform(choice_logprobs, lambda logprob: exp(logprob - choice_logprobs[chosen]))) as confidence,
    prompt
from choices
where not coalesce(
    -- positions count from 0 there, from 1 here
    list_bool_or(list_transform(gold_index, lambda position: choice_logprobs[position + 1] = choice_logprobs[chosen])),
    false
)
order by confidence desc, eval, model, sample_id

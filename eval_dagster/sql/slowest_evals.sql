-- One row per eval and model: what its answers cost, the most expensive first.
select
    eval,
    model,
    count(*) as responses,
    count(error) as errors,
    sum(latency_s) as model_seconds,
    sum(latency_s) / count(*) as seconds_a_response,
    sum(prompt_tokens) as prompt_tokens,
    sum(output_tokens) as output_tokens
from responses
group by eval, model
order by model_seconds desc, eval, model

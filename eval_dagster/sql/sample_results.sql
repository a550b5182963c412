-- One row per eval, model, sample and metric: what the model was asked, what it answered, what is correct, and the score.
with versions as (
    -- Prompts and responses may be newer than the scores, after a run that failed in between: only those that were scored belong here.
    select distinct
        eval,
        model,
        prompt_version,
        model_version
    from metrics
)

select
    scores.eval,
    scores.model,
    scores.sample_id,
    scores.source_id,
    scores.sample_name,
    scores.subject,
    scores.metric,
    prompts.prompt,
    prompts.choices,
    coalesce(
        responses.text_post_processed[1],
        responses.text[1],
        prompts.choices[list_position(responses.choice_logprobs, list_max(responses.choice_logprobs))]
    ) as answer,
    prompts.gold,
    scores.value as score,
    coalesce(scores.error, responses.error) as error,
    responses.text as texts,
    responses.choice_logprobs,
    prompts.request_id
from scores
left join versions
    on scores.eval = versions.eval and scores.model = versions.model
left join prompts
    on versions.eval = prompts.eval
    and versions.model = prompts.model
    and versions.prompt_version = prompts.prompt_version
    and scores.sample_id = prompts.sample_id
left join responses
    on prompts.eval = responses.eval
    and prompts.model = responses.model
    and prompts.sample_id = responses.sample_id
    and prompts.request_id = responses.request_id
    and versions.model_version = responses.model_version
order by scores.eval, scores.model, scores.metric, scores.sample_id

-- One row per question of a look at a served model: the answers, those that it was compared with, and by how much they differ.
with questions as (
    select
        model,
        base_url,
        run_id,
        looked_at,
        epoch,
        unnest(answers) as question
    from endpoint_states
)

select
    model,
    base_url,
    run_id,
    looked_at,
    epoch,
    question.asked as asked,
    question.is_canary as is_canary,
    [each.text for each in question.reference] as reference,
    [each.text for each in question.answers] as answers,
    question.difference as difference,
    question.noise as noise,
    question.error as error
from questions
order by looked_at, model, is_canary desc, asked

-- One row per eval, model and check of its rows, prompts and answers: signs that the score measures something else than its name says.
with checked as (
    select
        eval,
        model,
        materialized_at,
        unnest(
            from_json(
                findings,
                '[{"check": "VARCHAR", "status": "VARCHAR", "seen": "VARCHAR", "n": "BIGINT", "n_of": "BIGINT",'
                || ' "sample_id": "VARCHAR", "sample_name": "VARCHAR", "sample_ids": ["VARCHAR"], "effect": "VARCHAR", "advice": "VARCHAR"}]'
            )
        ) as finding
    from internal._current_metrics
    where is_headline and findings is not null
)

select
    eval,
    model,
    finding['check'] as check_name,
    finding['status'] as status,
    finding['n'] as n,
    finding['n_of'] as n_of,
    finding['sample_id'] as sample_id,
    finding['sample_name'] as sample_name,
    -- Null in results of earlier releases.
    finding['sample_ids'] as sample_ids,
    finding['seen'] as seen,
    finding['effect'] as effect,
    finding['advice'] as advice,
    materialized_at
from checked
order by list_position(['found', 'note'], status) nulls last, eval, model, check_name

-- One row per eval, model and headline metric, also of evals and models that evals.yaml no longer has: ranks among comparable results.
with headlines as (
    select
        *,
        not exists (select 1 from internal._configured)
        or (
            eval in (select name from internal._configured where kind = 'eval')
            and model in (select name from internal._configured where kind = 'model')
        ) as is_configured
    from metrics
    where is_headline
),

comparable_sets as (
    select
        eval,
        metric,
        aggregation,
        metric_version,
        samples_version,
        questions_version,
        list(distinct dataset_version) as dataset_versions,
        count(*) as models,
        max(n + n_errors) as asked,
        max(materialized_at) as newest
    from headlines
    where is_configured
    group by eval, metric, aggregation, metric_version, samples_version, questions_version
),

reference as (
    -- Of each eval, one set is ranked: that of most models, then of most samples, then the newest.
    select *
    from comparable_sets
    qualify row_number() over (partition by eval order by models desc, asked desc, newest desc, metric, questions_version) = 1
),

versions as (
    select
        headlines.*,
        reference.metric as ranked_metric,
        reference.aggregation as ranked_aggregation,
        reference.metric_version as ranked_metric_version,
        reference.samples_version as ranked_samples_version,
        reference.questions_version as ranked_questions_version,
        list_contains(reference.dataset_versions, headlines.dataset_version) as is_dataset_equal
    from headlines
    left join reference
        on headlines.eval = reference.eval
),

compared as (
    select
        *,
        nullif(
            concat_ws(
                ', ',
                case when not is_configured then 'not in evals.yaml' end,
                case when metric != ranked_metric or aggregation != ranked_aggregation then 'metric' end,
                case when metric = ranked_metric and metric_version is distinct from ranked_metric_version then 'metric version' end,
                case when samples_version != ranked_samples_version then 'samples' end,
                case when samples_version != ranked_samples_version and not is_dataset_equal then 'dataset version' end,
                case when samples_version = ranked_samples_version and questions_version != ranked_questions_version then 'prompts' end
            ),
            ''
        ) as differs
    from versions
),

found as (
    select
        eval,
        model,
        list(check_name order by check_name) filter (where status = 'found') as checks
    from eval_findings
    group by eval, model
),

unfinished as (
    select *
    from attempts
    where status != 'ok'
    qualify row_number() over (partition by eval, model order by finished_at desc) = 1
),

newer_attempts as (
    -- A failure counts until the stage that failed, or a later one, succeeds.
    select
        unfinished.eval,
        unfinished.model,
        case when unfinished.status = 'failed' then concat('failed at ', unfinished.stage) else unfinished.status end as newer_attempt
    from unfinished
    anti join attempts
        on unfinished.eval = attempts.eval
        and unfinished.model = attempts.model
        and attempts.status = 'ok'
        and attempts.finished_at > unfinished.finished_at
        and list_position(['dataset_snapshot', 'rendered_prompts', 'model_outputs', 'sample_scores', 'task_metrics'], attempts.stage)
        >= list_position(['dataset_snapshot', 'rendered_prompts', 'model_outputs', 'sample_scores', 'task_metrics'], unfinished.stage)
)

select
    eval,
    model,
    metric,
    value,
    stderr,
    ci_low,
    ci_high,
    n,
    n_errors,
    n_cut_off,
    n_empty,
    n_unparsed,
    n_refused,
    n_repeated,
    n_shortened,
    n_completed,
    value_completed,
    value_lowest,
    value_highest,
    case when value is not null and differs is null then rank() over (
        partition by eval, differs is null
        order by case when higher_is_better then value else -value end desc nulls last
    ) end as rank,
    differs,
    -- Null where nobody has looked.
    case when found.eval is not null then coalesce(found.checks, []) end as findings,
    newer_attempts.newer_attempt,
    mixed_answers,
    n_not_asked,
    estimate,
    estimate_factor,
    estimate_note,
    is_configured
from compared
left join found
    using (eval, model)
left join newer_attempts
    using (eval, model)
order by eval, rank nulls last, model

-- One row per eval, model and headline metric, also of evals and models that evals.yaml no longer has: ranks among comparable results.
with headlines as (
    select
        *,
        not exists (select 1 from _configured)
        or (
            eval in (select name from _configured where kind = 'eval')
            and model in (select name from _configured where kind = 'model')
        ) as is_configured,
        -- What results of an earlier version do not know is told by the versions of the files.
        coalesce(samples_version, dataset_version, '') as samples,
        coalesce(questions_version, prompt_version, '') as questions
    from metrics
    where is_headline
),

comparable_sets as (
    select
        eval,
        metric,
        aggregation,
        metric_version,
        samples,
        questions,
        any_value(dataset_version) as dataset_version,
        count(*) as models,
        max(n + n_errors) as asked,
        max(materialized_at) as newest
    from headlines
    where is_configured
    group by eval, metric, aggregation, metric_version, samples, questions
),

reference as (
    -- Of an eval one set is ranked: that of most models, then of most samples, then the newest.
    select *
    from comparable_sets
    qualify row_number() over (partition by eval order by models desc, asked desc, newest desc, metric, questions) = 1
),

compared as (
    select
        headlines.*,
        nullif(
            concat_ws(
                ', ',
                if(not headlines.is_configured, 'not in evals.yaml', null),
                if(headlines.metric != reference.metric or headlines.aggregation != reference.aggregation, 'metric', null),
                if(headlines.metric = reference.metric and headlines.metric_version is distinct from reference.metric_version, 'metric version', null),
                if(headlines.samples != reference.samples, 'samples', null),
                if(headlines.samples != reference.samples and headlines.dataset_version != reference.dataset_version, 'dataset version', null),
                if(headlines.samples = reference.samples and headlines.questions != reference.questions, 'prompts', null)
            ),
            ''
        ) as differs
    from headlines
    left join reference
        on headlines.eval = reference.eval
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
    if(value is null or differs is not null, null, rank() over (
        partition by eval, differs is null
        order by if(higher_is_better, value, -value) desc nulls last
    )) as rank,
    differs,
    is_configured
from compared
order by eval, rank nulls last, model

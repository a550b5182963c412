-- One row per eval, model and headline metric, also of evals and models that evals.yaml no longer has: ranks among comparable results.
with headlines as (
    select
        *,
        not exists (select 1 from _configured)
        or (
            eval in (select name from _configured where kind = 'eval')
            and model in (select name from _configured where kind = 'model')
        ) as is_configured,
        -- Results of an earlier version have the versions of their files alone.
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
        any_value(samples_version) as samples_version,
        any_value(questions_version) as questions_version,
        list(distinct coalesce(dataset_version, '')) as dataset_versions,
        list(distinct coalesce(prompt_version, '')) as prompt_versions,
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

versions as (
    select
        headlines.*,
        reference.metric as ranked_metric,
        reference.aggregation as ranked_aggregation,
        reference.metric_version as ranked_metric_version,
        reference.samples_version as ranked_samples_version,
        reference.questions_version as ranked_questions_version,
        list_contains(reference.dataset_versions, coalesce(headlines.dataset_version, '')) as is_dataset_equal,
        list_contains(reference.prompt_versions, coalesce(headlines.prompt_version, '')) as is_prompt_version_equal,
        coalesce(headlines.samples_version = ranked_samples_version, is_dataset_equal) as is_samples_equal,
        coalesce(headlines.questions_version = ranked_questions_version, is_prompt_version_equal) as is_questions_equal
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
                if(not is_configured, 'not in evals.yaml', null),
                if(metric != ranked_metric or aggregation != ranked_aggregation, 'metric', null),
                if(metric = ranked_metric and metric_version is distinct from ranked_metric_version, 'metric version', null),
                if(samples_version != ranked_samples_version, 'samples', null),
                if(not is_samples_equal and not is_dataset_equal, 'dataset version', null),
                case
                    when not is_samples_equal or is_questions_equal then null
                    -- The version also counts the template and settings of generation, which do not keep results from being ranked.
                    when questions_version is null or ranked_questions_version is null then 'prompt version'
                    else 'prompts'
                end
            ),
            ''
        ) as differs
    from versions
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

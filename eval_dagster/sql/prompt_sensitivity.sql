-- One row per eval and model, where an eval has variants: how much of the headline's score the wording of the prompt makes.
with effects as (
    select
        eval,
        model,
        metric,
        from_json(
            variants -> 'effect',
            '{"n_common": "BIGINT", "n_clusters": "BIGINT", "spread": "DOUBLE", "spread_low": "DOUBLE", "spread_high": "DOUBLE",'
            || ' "deviation": "DOUBLE", "share": "DOUBLE"}'
        ) as effect
    from internal._current_metrics
    where variants is not null and is_headline
),

extremes as (
    select
        eval,
        model,
        count(*) as n_variants,
        arg_min(variant, value) as lowest_variant,
        arg_max(variant, value) as highest_variant
    from variant_scores
    where is_headline
    group by eval, model
),

-- Models are compared with each other if they have a rank: they were asked the same questions, in the same variants.
ranked as (
    select
        eval,
        model,
        value
    from leaderboard_all
    where rank is not null
),

best as (
    select
        eval,
        count(*) as n_models,
        abs(any_value(value) filter (place = 1) - any_value(value) filter (place = 2)) as best_difference
    from (
        select
            *,
            row_number() over (partition by eval order by rank, model) as place
        from leaderboard_all
        where rank is not null
    )
    group by eval
),

places as (
    -- Models with equal scores share the mean of their places.
    select
        variant_scores.eval,
        variant_scores.model,
        variant_scores.variant,
        rank() over (of_variant order by variant_scores.value) + (count(*) over tied - 1) / 2 as place,
        count(*) over tied as ties
    from variant_scores
    inner join ranked
        on variant_scores.eval = ranked.eval and variant_scores.model = ranked.model
    where variant_scores.is_headline and variant_scores.value is not null
    window
        of_variant as (partition by variant_scores.eval, variant_scores.variant),
        tied as (partition by variant_scores.eval, variant_scores.variant, variant_scores.value)
),

sums as (
    select
        eval,
        model,
        sum(place) as place,
        -- Each of t models with equal scores has a part of t cubed - t.
        sum(ties * ties - 1) as tied,
        count(*) as n_variants
    from places
    group by eval, model
),

agreements as (
    -- Kendall's W with ties (Kendall and Gibbons 1990, "Rank Correlation Methods", chapter 6).
    select
        eval,
        case when count(*) > 1 and min(n_variants) = max(n_variants) then
            12 * var_pop(place) * count(*)
            / nullif(any_value(n_variants) ** 2 * (count(*) ** 3 - count(*)) - any_value(n_variants) * sum(tied), 0)
        end as rank_stability
    from sums
    group by eval
)

select
    effects.eval,
    effects.model,
    effects.metric,
    extremes.n_variants,
    effects.effect['n_common'] as n_common,
    effects.effect['n_clusters'] as n_clusters,
    effects.effect['spread'] as spread,
    effects.effect['spread_low'] as spread_low,
    effects.effect['spread_high'] as spread_high,
    effects.effect['deviation'] as deviation,
    effects.effect['share'] as share,
    extremes.lowest_variant,
    extremes.highest_variant,
    best.n_models,
    agreements.rank_stability,
    best.best_difference,
    case
        when effects.effect['spread'] <= best.best_difference then false
        when effects.effect['spread_low'] > 0 and best.best_difference is not null then true
    end as exceeds_models
from effects
inner join extremes
    on effects.eval = extremes.eval and effects.model = extremes.model
left join best
    on effects.eval = best.eval
left join agreements
    on effects.eval = agreements.eval
order by effects.eval, effects.model

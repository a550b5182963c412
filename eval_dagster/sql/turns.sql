-- One row per request of an episode to a model, in the order of the episode.
select
    eval,
    model,
    sample_id,
    turn.number,
    turn.place,
    turn.role,
    turn.request_id,
    turn.kept as n_kept,
    turn.new_messages::varchar as new_messages,
    turn.answer ->> 'content' as text,
    coalesce(json_array_length(turn.answer, '$.tool_calls'), 0)::integer as n_tool_calls,
    turn.error,
    turn.latency_s,
    turn.prompt_tokens,
    turn.output_tokens,
    turn.cost
from (
    select
        eval,
        model,
        sample_id,
        unnest(
            from_json(
                json_extract(episode, '$.turns'),
                '[{"number": "INTEGER", "place": "VARCHAR", "role": "VARCHAR", "request_id": "VARCHAR", "kept": "INTEGER",
                   "new_messages": "JSON", "answer": "JSON", "error": "VARCHAR", "latency_s": "DOUBLE", "prompt_tokens": "INTEGER",
                   "output_tokens": "INTEGER", "cost": "DOUBLE"}]'
            )
        ) as turn
    from responses
    where episode is not null
)
order by eval, model, sample_id, turn.number

-- One row per call of a tool in an episode, in the order of the episode.
select
    eval,
    model,
    sample_id,
    tool.number,
    tool.place,
    tool.call_id,
    tool.name,
    tool.kind,
    tool.arguments,
    tool.result,
    tool.error,
    tool.seconds
from (
    select
        eval,
        model,
        sample_id,
        unnest(
            from_json(
                json_extract(episode, '$.tool_calls'),
                '[{"number": "INTEGER", "place": "VARCHAR", "call_id": "VARCHAR", "name": "VARCHAR", "kind": "VARCHAR",
                   "arguments": "VARCHAR", "result": "VARCHAR", "error": "VARCHAR", "seconds": "DOUBLE"}]'
            )
        ) as tool
    from responses
    where episode is not null
)
order by eval, model, sample_id, tool.number

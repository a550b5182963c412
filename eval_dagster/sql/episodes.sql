-- One row per sample whose task has episodes: how the episode ended.
select
    eval,
    model,
    sample_id,
    sample_name,
    json_extract_string(episode, '$.status') as status,
    error,
    text_post_processed[1] as result,
    json_array_length(episode, '$.turns')::integer as n_turns,
    json_array_length(episode, '$.tool_calls')::integer as n_tool_calls,
    json_extract(episode, '$.seconds')::double as seconds,
    prompt_tokens,
    output_tokens,
    cost
from responses
where episode is not null
order by eval, model, sample_id

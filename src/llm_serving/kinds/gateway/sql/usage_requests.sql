-- Requests that LiteLLM recorded in a time, by team, user, model and backend.
SELECT team_id AS team, "user", CASE WHEN is_blocked THEN '{refused}' ELSE model_group END AS model,
  CASE WHEN is_blocked THEN '{refused}' WHEN is_cached THEN '{cache}' ELSE model_id END AS backend,
  count(*) FILTER (WHERE status = 'success' AND NOT is_embedding) AS requests,
  coalesce(sum(prompt_tokens) FILTER (WHERE NOT is_cached), 0) AS input_tokens,
  coalesce(sum(completion_tokens) FILTER (WHERE NOT is_cached), 0) AS output_tokens, sum(spend) AS list_usd,
  count(*) FILTER (WHERE is_cached) AS cached_requests,
  count(*) FILTER (WHERE is_cached AND metadata::jsonb -> 'spend_logs_metadata' ? 'similarity') AS similar_requests,
  coalesce(sum(prompt_tokens + completion_tokens) FILTER (WHERE is_cached), 0) AS saved_tokens,
  count(*) FILTER (WHERE metadata::jsonb -> 'spend_logs_metadata' ? 'personal_data') AS masked,
  count(*) FILTER (WHERE is_blocked) AS blocked
FROM (
  SELECT *, cache_hit IS NOT DISTINCT FROM 'True' AS is_cached, starts_with(coalesce(model_group, ''), '{embedding}')
    AS is_embedding,
    status <> 'success' AND completion_tokens > 0 AS is_broken,
    status <> 'success' AND coalesce(metadata::jsonb -> 'error_information' ->> 'error_message', '')
      ~ '{refusal}' AS is_blocked
  FROM "LiteLLM_SpendLogs"
) AS logs
WHERE team_id IS NOT NULL AND (status = 'success' OR is_blocked OR is_broken)
  AND "endTime" >= {start} AT TIME ZONE 'UTC' AND "endTime" < {end} AT TIME ZONE 'UTC'
GROUP BY 1, 2, 3, 4

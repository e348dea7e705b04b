-- Requests of a time, the first ones.
SELECT to_char("endTime", 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, coalesce(team_id, '') AS team, "user", api_key AS key,
  coalesce(model_group, '') AS model, coalesce(model_id, '') AS backend, prompt_tokens AS input_tokens,
  completion_tokens AS output_tokens, spend AS list_usd, status,
  coalesce(metadata::jsonb -> 'error_information' ->> 'error_code', '') AS code, cache_hit,
  metadata::jsonb -> 'spend_logs_metadata' -> 'similarity' AS similarity
FROM "LiteLLM_SpendLogs"
WHERE "endTime" >= {start} AT TIME ZONE 'UTC' AND "endTime" < {end} AT TIME ZONE 'UTC'
ORDER BY "endTime" LIMIT {most}

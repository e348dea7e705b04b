-- What teams used of deployments that ask for keys themselves.
SELECT deployment, team, model, sum(requests) AS requests, sum(input_tokens) AS input_tokens,
  sum(output_tokens) AS output_tokens
FROM (
  SELECT deployment, team, model, at, is_first, {requests}, {input_tokens}, {output_tokens} FROM blueprint_door
  WINDOW earlier AS (PARTITION BY deployment, router, team, model ORDER BY at)
) AS steps
WHERE NOT is_first AND team NOT IN ('', '{gateway}') AND at >= {start} AND at < {end}
GROUP BY 1, 2, 3

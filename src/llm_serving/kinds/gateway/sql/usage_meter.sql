-- The meter's rows of a time: from the last row before it on, so that what months cost adds up to all. The counters of a
-- deployment's engines are added up here: a month with those of all would not fit beside LiteLLM.
WITH kept AS (
  SELECT deployment, at, usd_h, tokens
  FROM blueprint_meter LEFT JOIN (
    SELECT deployment, max(at) AS last_before FROM blueprint_meter WHERE at < {start} GROUP BY deployment
  ) AS earlier USING (deployment)
  WHERE at < {end} AND at >= coalesce(last_before, {start})
), counters AS (
  SELECT deployment, at, count::float8 AS count,
    lag(count::float8) OVER (PARTITION BY deployment, engine ORDER BY at) AS last_known
  FROM kept CROSS JOIN LATERAL jsonb_each_text(tokens) AS engines (engine, count)
), growths AS (
  SELECT deployment, at, sum(CASE WHEN count < last_known THEN count ELSE coalesce(count - last_known, 0) END) AS made
  FROM counters GROUP BY deployment, at
)
SELECT deployment, extract(epoch FROM at) AS at, usd_h, json_build_object(
    'all', coalesce(sum(made) OVER (PARTITION BY deployment ORDER BY at), 0)) AS tokens
FROM kept LEFT JOIN growths USING (deployment, at)
ORDER BY at

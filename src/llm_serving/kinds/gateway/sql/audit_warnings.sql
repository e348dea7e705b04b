-- An entry for each budget that is nearly spent and has none yet; a sentence for each.
INSERT INTO blueprint_audit (event, team, detail)
SELECT 'budget', team, format('%s: %s of %s USD', period, round(spent::numeric, 4)::float8, budget)
FROM (
  SELECT team_id AS team, 'day' AS period, date_trunc('day', now() AT TIME ZONE 'UTC') AS start,
    (jsonb_path_query_first(budget_limits, '$[*].max_budget'))::float8 AS budget
  FROM "LiteLLM_TeamTable"
  UNION ALL
  SELECT team_id, 'month', date_trunc('month', now() AT TIME ZONE 'UTC'), max_budget FROM "LiteLLM_TeamTable"
) AS budgets
CROSS JOIN LATERAL (
  SELECT coalesce(sum(spend), 0) AS spent FROM "LiteLLM_DailyTeamSpend"
  WHERE team_id = team AND date >= to_char(start, 'YYYY-MM-DD')
) AS spends
WHERE budget > 0 AND spent >= {share} * budget AND NOT EXISTS (
  SELECT FROM blueprint_audit AS earlier
  WHERE event = 'budget' AND earlier.team = budgets.team AND starts_with(detail, period)
    AND at >= start AT TIME ZONE 'UTC'
)
RETURNING team || ': ' || detail;
